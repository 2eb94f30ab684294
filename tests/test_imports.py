"""Which folder may import which (the layers of the design), what may be imported at all, and that
importing does no work."""

import ast
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEAVES = {"types", "setting", "igpo", "config", "settings", "files", "console", "flags"}
MAY_IMPORT = {  # folder or file of minvenus -> the others that it may import
    "types": set(),
    "setting": set(),
    "config": {"setting"},
    "console": {"config"},
    "settings": {"setting", "config"},
    "files": {"config"},
    "flags": {"setting", "config", "files", "igpo"},
    "igpo": {"types", "setting"},
    "text": LEAVES,
    "kernels": LEAVES,
    "model": LEAVES | {"kernels"},
    "engine": LEAVES | {"kernels", "model"},
    "tools": LEAVES | {"text"},
    "agent": LEAVES | {"text", "igpo", "model", "engine", "tools"},
    "evaluation": LEAVES | {"text", "tools", "igpo", "agent"},
    "sft": LEAVES | {"text", "evaluation", "agent"},
    "report": LEAVES | {"text", "igpo", "agent", "evaluation", "tools"},
    "train": LEAVES | {"text", "kernels", "model", "igpo", "sft", "evaluation"},
}
MAY_IMPORT["setup"] = MAY_IMPORT["train"] | {"train", "agent", "engine", "tools"}
MAY_IMPORT["experiments"] = set(MAY_IMPORT)
RUNTIME = {"torch", "safetensors", "tokenizers", "numpy", "requests", "triton"}
SCRIPTS = {path.stem for path in ROOT.glob("*.py")}


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "minvenus").parts[0].removesuffix(".py")


PACKAGE = sorted(path for path in (ROOT / "minvenus").rglob("*.py") if part_of(path) != "__init__")


def imported(path: Path) -> set[str]:
    """Every module that a file imports, at whatever depth; `from minvenus.x import y` counts as
    minvenus.x.y."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("part", sorted({part_of(path) for path in PACKAGE}))
def test_imports_follow_the_direction_of_the_design(part):
    outside = {"torch"} if part == "igpo" else RUNTIME  # the reward maths needs nothing else
    for path in PACKAGE:
        for name in imported(path) if part_of(path) == part else ():
            top, *rest = name.split(".")
            assert top not in SCRIPTS, f"nothing imports a script, {path} imports {name}"
            if top == "minvenus":
                assert rest[0] in MAY_IMPORT[part] | {part}, f"{path} may not import {name}"
            else:
                assert top in outside | sys.stdlib_module_names, f"{path}: {top} is no dependency"


def test_no_two_folders_may_import_each_other_not_even_around_a_corner():
    assert list(TopologicalSorter(MAY_IMPORT).static_order())  # raises CycleError


def test_the_runtime_dependencies_are_exactly_the_six_and_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    assert all("==" in pin for pin in pins), pins
    names = {pin.split("==")[0] for pin in pins}
    assert len(names) == len(pins) and names == RUNTIME | {"pytest", "hypothesis"}


def test_importing_the_package_and_the_scripts_takes_under_3_seconds_and_starts_no_work():
    """Seconds of the processor, so that other work on the machine does not count; what torch itself
    takes is not ours."""
    code = f"""
import sys, threading, time, torch
start = time.process_time()
import minvenus.kernels.paged, {", ".join(sorted(SCRIPTS))}
print(time.process_time() - start, threading.active_count(), "triton" in sys.modules)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == "" and done.stdout.count("\n") == 1, "importing a script prints nothing"
    seconds, threads, triton = done.stdout.split()
    assert float(seconds) < 3.0 and threads == "1"
    assert triton == "False", "triton may be imported only when a kernel runs"


# ------------------------------------------------------------------------------------------- sizes

FILES = [*(ROOT / "minvenus").rglob("*"), *ROOT.glob("*.py")]
SOURCE = [path for path in FILES if path.suffix in (".py", ".js", ".css")]


def test_no_source_file_has_more_than_300_lines():
    assert not [str(path) for path in SOURCE if len(path.read_text().splitlines()) > 300]


def test_no_line_has_more_than_100_columns():
    wide = []
    for path in (*SOURCE, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if len(line) > 100:
                wide.append(f"{path}:{number}")
    assert not wide


@pytest.mark.parametrize(
    "path", [p for p in SOURCE if p.suffix == ".py"], ids=lambda p: str(p.relative_to(ROOT))
)
def test_no_function_has_more_than_50_lines(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 50, f"{node.name}, line {node.lineno}"
