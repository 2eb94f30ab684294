"""make docs-check: look at every command of README.md, CONTRIBUTING.md and docs/, and say what was
done with it.

    run        here, in a folder of its own; if docs/results has its output, it must be the same
    tested     by the test that is named
    parsed     needs a GPU, keys, files of yours or hours: its flags were read by the script's own
               parser, no more

`python -m tests.docs --write` writes the output of the commands that are run into docs/results, and
`--links` the present lines of functions into the links to them. The output of `make demo` comes
from `make demo 2>&1 | tee`. Numbers may differ in the last digits on another kind of machine.
"""

import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from contextlib import chdir, redirect_stderr
from itertools import pairwise
from pathlib import Path

from minvenus.config import ConfigError
from minvenus.console import table
from minvenus.experiments import methods
from minvenus.experiments.__main__ import COMMANDS
from minvenus.flags import parse_flags
from minvenus.settings import EvalConfig, InferConfig
from minvenus.sft.__main__ import CleanConfig
from minvenus.train.presets import IGPO_PRESETS, SFT_PRESETS
from minvenus.train.settings import IGPOConfig, SFTConfig

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAM = r"(?:\.venv/bin/)?(?:python|torchrun|make) "
BLOCK = re.compile(rf"^    (?:\$ )?({PROGRAM}(?:.*\\\n)*.*)$", re.MULTILINE)
INLINE = re.compile(rf"`({PROGRAM}[^`\n]+)`")
SCRIPTS: dict[str, tuple[type, dict]] = {
    "infer.py": (InferConfig, {}),
    "eval.py": (EvalConfig, {}),
    "train_sft.py": (SFTConfig, SFT_PRESETS),
    "train_igpo.py": (IGPOConfig, IGPO_PRESETS),
}
EXPERIMENTS = "python -m minvenus.experiments"
LAB = '--gains front --methods "paper, uncentred" --steps 21 --learning-rate 3.2'
TWO = '--methods "paper, uncentred" --seeds 2 --checkpoints 1 --hops 2 --steps 20 --out runs/two'
RUN = {  # command -> its file in docs/results, if its output is shown; in this order
    f"{EXPERIMENTS} credit --example front-loaded": "credit.txt",
    f"{EXPERIMENTS} lab {LAB}": "lab.txt",
    f"{EXPERIMENTS} compare {TWO}": "compare.txt",
    "python eval.py --xray runs/two/paper-11000/rollouts/step-00000001.jsonl": "xray.txt",
    "python eval.py": None,
    "python eval.py --temperature 1 --runs 4": None,
}
TESTED = {  # the beginning of a command -> the test that makes the same calls, only fewer
    "make demo": "tests/experiments/test_demo.py",
    "make compare": "tests/experiments/test_compare.py",
    "make lab": "tests/experiments/test_lab.py",
    "make base": "tests/experiments/test_base.py",
    "make mutants": "tests/mutants/test_mutants.py",
    "make pictures": "tests/experiments/test_pictures.py",
    "make test": "tests/run.py",
    "make real": "tests/experiments/test_real.py",  # and make real-model
    f"{EXPERIMENTS} audit --model runs/smollm2": "tests/experiments/test_real.py",
    f"{EXPERIMENTS} audit": "tests/experiments/test_audit.py",
    f"{EXPERIMENTS} credit": "tests/experiments/test_calculator.py",
    "python eval.py --xray": "tests/test_eval.py",
    "python eval.py --compare": "tests/test_eval.py",
    "python -m minvenus.sft": "tests/sft/test_command.py",
    "python -m tests.mutants.run": "tests/mutants/test_mutants.py",
}
LINK = re.compile(r"(\[`(\w+)`\]\(([\w/.]+)#L\d+\))")
OTHERS = {"vllm.entrypoints.openai.api_server"}  # modules of programs that are not ours


def commands() -> dict[str, list[str]]:
    """Every command, as `python ...` or `make ...` without comments -> the pages that have it."""
    pages: dict[str, list[str]] = {}
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for written in [*BLOCK.findall(text), *INLINE.findall(text)]:
            command = re.sub(r"\s*\\\n\s*", " ", written).split("  #")[0].strip()
            names = pages.setdefault(command.removeprefix(".venv/bin/"), [])
            if path.name not in names:
                names.append(path.name)
    return pages


# ------------------------------------------------------------------------------------------- parsed


def check(command: str) -> str:
    """How a command is checked. A target, a script, a module, a flag or a value that does not exist
    is an error."""
    first, *words = shlex.split(command.split(" 2>&1 |")[0])
    if first == "make":
        targets = re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for word in words:
            if word not in targets and "=" not in word:
                raise ConfigError(f"the Makefile has no {word}")
    else:
        if first == "torchrun":
            while words and not words[0].endswith(".py"):  # its own options
                words = words[1:]
        if words:  # none after torchrun in a sentence
            parse(words)
    if command in RUN:
        return "run"
    test = test_of(command)
    if test and not (ROOT / test).exists():
        raise ConfigError(f"there is no {test}")
    if test:
        return f"tested: {test}"
    return "only looked up" if first == "make" else "only parsed"


def test_of(command: str) -> str | None:
    if "--plan" in command.split():
        return "tests/train/test_plan.py"
    for beginning, test in TESTED.items():
        if f"{command} ".startswith(f"{beginning} "):
            return test
    return None


def parse(words: list[str]) -> None:
    """Read the flags of python's arguments."""
    if words[0] != "-m":
        config, presets = SCRIPTS[words[0]]
        return parse_as(config, words[1:], presets)
    module, *flags = words[1:]
    if module == "minvenus.sft":
        return parse_as(CleanConfig, flags, {})
    if module == "minvenus.experiments":
        name, *flags = flags
        if name == "credit" and flags and not flags[0].startswith("-"):
            flags = ["--file", *flags]
        return parse_as(COMMANDS[name], flags, methods.PRESETS)
    if module not in OTHERS and importlib.util.find_spec(module) is None:
        raise ConfigError(f"there is no module {module}")
    if module == "pytest" and not all((ROOT / path).exists() for path in flags):
        raise ConfigError(f"there is no {flags}")


def parse_as(config: type, flags: list[str], presets: dict) -> None:
    if "..." in flags or (not flags and config is COMMANDS["audit"]):  # a command in a sentence
        return
    errors = io.StringIO()
    try:
        with redirect_stderr(errors), tempfile.TemporaryDirectory() as folder, chdir(folder):
            stand_ins(flags)
            parse_flags(config, flags, presets=presets)
    except SystemExit:
        raise ConfigError(errors.getvalue().strip().splitlines()[-1]) from None


def stand_ins(flags: list[str]) -> None:
    """Put something where a command names a model or a file of the reader's own."""
    for flag, name in pairwise(flags):
        if flag == "--model" and "/" in name:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).symlink_to(ROOT / "minvenus" / "tiny_base")
        elif flag in ("--in", "--data", "--questions"):
            Path(name).touch()


# ---------------------------------------------------------------------------------------------- run


def output(command: str, folder: str) -> str:
    """What a command prints, run in a folder of its own."""
    _, *words = shlex.split(command)
    if words[0].endswith(".py"):
        words[0] = str(ROOT / words[0])
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise ConfigError(f"exit code {done.returncode}")
    return f"$ {command}\n{done.stdout}"


def run(command: str, folder: str, write: bool) -> None:
    """Run a command, and write its output into docs/results or compare it with what is there."""
    print(f"$ {command}", flush=True)
    printed = output(command, folder)
    if RUN[command] is None:
        return
    file = RESULTS / RUN[command]
    if write:
        file.write_text(printed, encoding="utf-8")
    elif printed != file.read_text(encoding="utf-8"):
        raise ConfigError(f"prints something else than docs/results/{file.name}")


def write_links() -> None:
    """Let every link to a line lead to the function that it names."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for link, name, file in LINK.findall(text):
            line = line_of(page.parent / file, name)
            text = text.replace(link, f"[`{name}`]({file}#L{line})")
        page.write_text(text, encoding="utf-8")


def line_of(path: Path, name: str) -> int:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith(f"def {name}("):
            return number
    raise ConfigError(f"there is no function {name} in {path}")


def main(write: bool) -> int:
    rows, wrong = [], 0
    pages = commands()
    with tempfile.TemporaryDirectory() as folder:
        for command in [*RUN, *(command for command in pages if command not in RUN)]:
            try:
                how = check(command)
                if how == "run":
                    run(command, folder, write)
            except (ConfigError, KeyError) as error:
                how, wrong = f"WRONG: {error}", wrong + 1
            rows.append([how, ", ".join(pages.get(command, [])), command])
    print(table(sorted(rows), left=True))
    print(f"{len(rows)} commands, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    if "--links" in sys.argv[1:]:
        sys.exit(write_links())
    sys.exit(main("--write" in sys.argv[1:]))
