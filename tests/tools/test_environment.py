"""docs/evaluation.md names every environment variable that the code reads."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_in_the_documentation_has_every_variable_and_no_other():
    source = "\n".join(path.read_text() for path in [*ROOT.glob("*.py"), *(ROOT / "minvenus").rglob("*.py")])
    prefixes = re.findall(r'from_environment\("([A-Z]+)"', source)
    services = "|".join([*prefixes, *re.findall(r'"([A-Z]+)_API_KEY"', source)])
    read = set(re.findall(rf'"((?:{services})_[A-Z_]+)"', source))
    read |= set(re.findall(r'(?:setting\(|environ\.get\(|environ\[)"([A-Z_]+)"', source))
    endings = set(re.findall(r"\{prefix\}_([A-Z_]+)", source))                   # of Endpoint.from_environment
    read |= {f"{prefix}_{ending}" for prefix in prefixes for ending in endings}
    assert {"JUDGE_MODEL", "SERPER_API_KEY", "EXTRACT_BASE_URL", "POLICY_API_KEY"} <= read
    table = (ROOT / "docs" / "evaluation.md").read_text().split("## Environment variables")[1].split("\n## ")[0]
    first_cells = " ".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `"))
    assert set(re.findall("`([A-Z_]+)`", first_cells)) == read
