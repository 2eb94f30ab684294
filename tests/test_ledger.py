"""The table from equation to code to test, docs/equations.md, stays true; and so does the README's
reading list."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CITATION = re.compile(r"\[([PI]) eq\.(\d+)(?:-(\d+))?\]")


def rows() -> list[list[str]]:
    """Cells of the ledger: equation, what it says, function, example test, property test."""
    page = (ROOT / "docs" / "equations.md").read_text()
    ledger = page.split("\n## From equation to code to test\n")[1]
    lines = [line for line in ledger.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def equations(text: str) -> set[str]:
    """Every equation that a text cites, ranges spelled out: [P eq.6-8] -> P6 P7 P8."""
    return {
        f"{paper}{n}"
        for paper, first, last in CITATION.findall(text)
        for n in range(int(first), int(last or first) + 1)
    }


def has_given(test: ast.FunctionDef) -> bool:
    return any("given" in ast.dump(decorator) for decorator in test.decorator_list)


def find_test(cell: str) -> ast.FunctionDef:
    file, _, name = cell.strip("`").partition("::")
    functions = {
        node.name: node
        for node in ast.walk(ast.parse((ROOT / file).read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert name in functions, f"{file} has no {name}"
    return functions[name]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_every_row_names_a_function_an_example_and_a_property_that_exist(row):
    _, _, function, example, prop = row
    module, _, name = function.strip("`").rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))
    assert not has_given(find_test(example)), f"{example} is a property, not an example"
    assert has_given(find_test(prop)), f"{prop} draws nothing at random"


def test_every_equation_that_the_code_cites_is_in_the_ledger_and_the_other_way_round():
    cited = set().union(
        *(equations(path.read_text()) for path in (ROOT / "minvenus").rglob("*.py"))
    )
    listed = set().union(*(equations(row[0]) for row in rows()))
    assert cited and listed == cited


def test_every_test_that_a_document_names_exists():
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^ *def (test_\w+)", written, re.MULTILINE))
    for path in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        named = set(re.findall(r"`(?:\S+::)?(test_\w+)`", path.read_text()))
        assert named <= there, path


def test_the_readmes_reading_list_names_files_that_exist():
    _, after = (ROOT / "README.md").read_text().split("## Read it in an evening\n")
    names = re.findall(r"`([\w/]+\.py)`", after.split("\n## ")[0])
    assert len(names) >= 18
    folder = ROOT
    for name in names:  # a bare name lies in the folder of the one before it
        places = [ROOT / name, ROOT / "minvenus" / name, folder / name]
        there = [path for path in places if path.is_file()]
        assert there, name
        folder = there[0].parent
