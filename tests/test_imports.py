"""Who may import whom (the layers of the design), what may be imported at all, and that importing does no work."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEAVES = {"types", "config", "settings", "files", "console", "flags"}
MAY_IMPORT = {                      # folder or file of minvenus -> the others that it may import
    "types": set(),
    "config": set(),
    "settings": {"config"},
    "files": {"config"},
    "console": set(),
    "flags": {"config", "files"},
    "text": LEAVES,
    "kernels": LEAVES,
    "model": LEAVES | {"kernels", "files"},
    "engine": LEAVES | {"kernels", "model"},
    "agent": LEAVES | {"text", "kernels", "model", "engine", "tools"},
    "igpo": {"types", "config"},
    "tools": LEAVES | {"text"},
    "sft": LEAVES | {"files", "console", "flags", "text", "evaluation", "agent.protocol", "agent.prompt"},
    "evaluation": LEAVES | {"model", "text", "tools", "files", "console", "agent"},
    "report": LEAVES | {"files", "console", "text", "igpo", "agent.protocol", "agent.record", "evaluation.aggregate"},
    "train": LEAVES | {"files", "console", "flags", "text", "kernels", "model", "igpo", "sft", "evaluation"},
}
MAY_IMPORT["experiments"] = set(MAY_IMPORT)        # puts all the others to work; of them, none may import it
SCRIPTS = {path.stem for path in ROOT.glob("*.py")}
RUNTIME = {"torch", "safetensors", "tokenizers", "numpy", "requests", "triton"}


def imported(path: Path) -> list[str]:
    """Every module that a file imports, at whatever depth; `from minvenus.x import y` counts as minvenus.x.y."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "minvenus").parts[0].removesuffix(".py")


PACKAGE = sorted(p for p in (ROOT / "minvenus").rglob("*.py") if part_of(p) != "__init__")


@pytest.mark.parametrize("path", PACKAGE, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_direction_of_the_design(path):
    own = part_of(path)
    for name in imported(path):
        top, *rest = name.split(".")
        assert top not in SCRIPTS, f"nothing imports a script, {path} imports {name}"
        if top == "minvenus":
            assert rest[0] == own or {rest[0], ".".join(rest[:2])} & MAY_IMPORT[own], f"{own} may not import {name}"
        else:
            assert top in RUNTIME or top in sys.stdlib_module_names, f"{path} imports {top}, which is not a dependency"


def test_the_reward_maths_needs_nothing_but_torch():
    for path in (ROOT / "minvenus" / "igpo").glob("*.py"):
        outside = {name.split(".")[0] for name in imported(path)} - {"minvenus", "torch"}
        assert outside <= sys.stdlib_module_names, f"{path} imports {outside - sys.stdlib_module_names}"


def test_the_runtime_dependencies_are_exactly_the_six_and_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["test"]
    assert all("==" in line for line in wanted), wanted
    assert {line.split("==")[0] for line in project["dependencies"]} == RUNTIME
    assert {line.split("==")[0] for line in project["optional-dependencies"]["test"]} == {"pytest", "hypothesis"}


def test_importing_minvenus_takes_under_3_seconds_and_starts_no_work():
    """Seconds of the processor, so that other work on the machine does not count; what torch itself takes is not ours."""
    code = ("import sys, time, threading; start = time.process_time(); import minvenus; ours = time.process_time() - start; "
            "import torch; start = time.process_time(); import minvenus.model.qwen3, minvenus.igpo.loss, minvenus.engine; "
            "print(ours + time.process_time() - start, threading.active_count(), 'triton' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, threads, triton = done.stdout.split()
    assert float(seconds) < 3.0 and threads == "1"
    assert triton == "False", "triton may be imported only when a kernel runs"


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_importing_a_script_starts_no_work(script):
    done = subprocess.run([sys.executable, "-c", f"import {script}"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "" and done.stderr == ""
