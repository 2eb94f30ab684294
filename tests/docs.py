"""make docs-check: every command of README.md, CONTRIBUTING.md and docs/ is looked at, and what was done is said.

    run        here, in a folder of its own; if docs/results has its output, it must be the same
    tested     by the test that is named
    parsed     needs a GPU, keys, files of yours or hours: its flags were read by the script's own parser, no more

`python -m tests.docs --write` writes the output of the commands that are run into docs/results; that of `make demo`
comes from `make demo 2>&1 | tee`. Numbers may differ in the last digits on another kind of machine.
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
from minvenus.presets import IGPO_PRESETS, SFT_PRESETS
from minvenus.settings import EvalConfig, IGPOConfig, InferConfig, SFTConfig
from minvenus.sft.__main__ import CleanConfig

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
BLOCK = re.compile(
    r"^    (?:\$ )?((?:\.venv/bin/)?(?:python|torchrun|make) (?:.*\\\n)*.*)$", re.MULTILINE
)
INLINE = re.compile(r"`((?:\.venv/bin/)?(?:python|torchrun|make) [^`\n]+)`")
SCRIPTS: dict[str, tuple[type, dict]] = {
    "infer.py": (InferConfig, {}),
    "eval.py": (EvalConfig, {}),
    "train_sft.py": (SFTConfig, SFT_PRESETS),
    "train_igpo.py": (IGPOConfig, IGPO_PRESETS),
}
EXPERIMENTS = "python -m minvenus.experiments"
TWO = (
    f'{EXPERIMENTS} compare --methods "paper, uncentred" --seeds 2 --checkpoints 1 --hops 2 '
    "--steps 20 --out runs/two"
)
LAB = f'{EXPERIMENTS} lab --gains front --methods "paper, uncentred" --steps 21 --learning-rate 3.2'
RUN = {  # command -> its file in docs/results, if its output is shown; in this order
    f"{EXPERIMENTS} credit --example front-loaded": "credit.txt",
    LAB: "lab.txt",
    TWO: "compare.txt",
    "python eval.py --xray runs/two/paper-3000/rollouts/step-00000001.jsonl": "xray.txt",
    "python eval.py": None,
    "python eval.py --temperature 1 --runs 4": None,
}
TESTED = {  # the beginning of a command -> the test that makes the same calls, only fewer
    "make demo": "tests/experiments/test_demo.py",
    "make compare": "tests/experiments/test_compare.py",
    "make ablations": "tests/experiments/test_compare.py",
    "make lab": "tests/experiments/test_lab.py",
    "make base": "tests/experiments/test_base.py",
    "make mutants": "tests/mutants/test_mutants.py",
    "make pictures": "tests/experiments/test_pictures.py",
    "make test": "tests/run.py",
    f"{EXPERIMENTS} audit": "tests/experiments/test_audit.py",
    f"{EXPERIMENTS} credit": "tests/experiments/test_calculator.py",
    "python eval.py --xray": "tests/test_eval.py",
    "python eval.py --compare": "tests/test_eval.py",
    "python -m minvenus.sft": "tests/sft/test_command.py",
    "python -m tests.mutants.run": "tests/mutants/test_mutants.py",
}
OTHERS = {"vllm.entrypoints.openai.api_server"}  # modules of programs that are not ours


def commands() -> dict[str, list[str]]:
    """Every command, as `python ...` or `make ...` without comments, and the documents that have it."""
    found: dict[str, list[str]] = {}
    for path in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ]:
        text = path.read_text(encoding="utf-8")
        for written in [*BLOCK.findall(text), *INLINE.findall(text)]:
            command = re.sub(r"\s*\\\n\s*", " ", written).split("  #")[0].strip()
            command = command.removeprefix(".venv/bin/")
            names = found.setdefault(command, [])
            if path.name not in names:
                names.append(path.name)
    return found


def check(command: str) -> str:
    """How a command is checked. A target, a script, a module, a flag or a value that does not exist is an error."""
    first, *words = shlex.split(command.split(" 2>&1 |")[0])
    if first == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        if wrong := [word for word in words if word not in targets and "=" not in word]:
            raise ConfigError(f"the Makefile has no {wrong[0]}")
    elif first == "torchrun":
        while words and not words[0].endswith(".py"):  # its own options
            words = words[1:]
        if words:  # none in a sentence
            parse(words)
    else:
        parse(words)
    if command in RUN:
        return "run"
    tested = next(
        (test for begin, test in TESTED.items() if f"{command} ".startswith(f"{begin} ")), None
    )
    if "--plan" in words:
        tested = "tests/train/test_plan.py"
    if tested and not (ROOT / tested).exists():
        raise ConfigError(f"there is no {tested}")
    return f"tested: {tested}" if tested else "only looked up" if first == "make" else "only parsed"


def parse(words: list[str]) -> None:
    """Read the flags of python's arguments."""
    if words[0] != "-m":
        config, presets = SCRIPTS[words[0]]
        return parsed(config, words[1:], presets)
    module, *flags = words[1:]
    if module == "minvenus.sft":
        return parsed(CleanConfig, flags, {})
    if module == "minvenus.experiments":
        name, *flags = flags
        if name == "credit" and flags and not flags[0].startswith("-"):
            flags = ["--file", *flags]
        return parsed(COMMANDS[name][0], flags, methods.PRESETS)
    if module not in OTHERS and importlib.util.find_spec(module) is None:
        raise ConfigError(f"there is no module {module}")
    if module == "pytest" and not all((ROOT / path).exists() for path in flags):
        raise ConfigError(f"there is no {flags}")


def parsed(config: type, flags: list[str], presets: dict) -> None:
    if "..." in flags or (not flags and config is COMMANDS["audit"][0]):  # a command in a sentence
        return
    said = io.StringIO()
    try:
        with redirect_stderr(said), tempfile.TemporaryDirectory() as folder, chdir(folder):
            stand_ins(flags)
            parse_flags(config, flags, presets=presets)
    except SystemExit:
        raise ConfigError(said.getvalue().strip().splitlines()[-1]) from None


def stand_ins(flags: list[str]) -> None:
    """Put something where a command names a model or a file of the reader's own."""
    for flag, name in pairwise(flags):
        if flag == "--model" and "/" in name:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).symlink_to(ROOT / "minvenus" / "tiny_base")
        elif flag in ("--in", "--data", "--questions"):
            Path(name).touch()


def output(command: str, folder: str) -> str:
    """What a command prints, run in a folder of its own."""
    _, *words = shlex.split(command)
    program = [str(ROOT / words[0]), *words[1:]] if words[0].endswith(".py") else words
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *program], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise ConfigError(f"exit code {done.returncode}")
    return f"$ {command}\n{done.stdout}"


def main(write: bool) -> int:
    rows, wrong = [], 0
    known = commands()
    with tempfile.TemporaryDirectory() as folder:
        for command in [*RUN, *(command for command in known if command not in RUN)]:
            try:
                how = check(command)
                if how == "run":
                    print(f"$ {command}", flush=True)
                    printed, file = output(command, folder), RUN[command]
                    if file and write:
                        (RESULTS / file).write_text(printed, encoding="utf-8")
                    elif file and printed != (RESULTS / file).read_text(encoding="utf-8"):
                        raise ConfigError(f"prints something else than docs/results/{file}")
            except (ConfigError, KeyError) as error:
                how, wrong = f"WRONG: {error}", wrong + 1
            rows.append([how, ", ".join(known.get(command, [])), command])
    print(table(sorted(rows), left=True))
    print(f"{len(rows)} commands, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv[1:]))
