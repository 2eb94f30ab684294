"""Show that the tests can fail: apply one mutant at a time and run the test that must notice it.

    python -m tests.mutants.run [--skip-baseline] [words that a mutant's description, target or test contains]

Every file in this folder that defines MUTANTS is read. Exit code 0: all mutants were killed. Errors are: a mutant
that no longer fits the code, a named test that does not exist, or one that fails without the mutant. The last is not
checked with --skip-baseline, for the test suite, which runs all these tests anyway.
"""

import contextlib
import importlib
import io
import pkgutil
import sys
import time
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests.mutants.mutant import Mutant, StaleMutant, applied

HERE = Path(__file__).resolve().parent
FAILED = pytest.ExitCode.TESTS_FAILED


def all_mutants() -> list[Mutant]:
    names = sorted(file.name for file in pkgutil.iter_modules([str(HERE)]))
    areas = [
        name for name in names if name not in ("mutant", "run") and not name.startswith("test_")
    ]
    return [m for name in areas for m in importlib.import_module(f"tests.mutants.{name}").MUTANTS]


def run_tests(tests: list[str]) -> tuple[int, str]:
    """pytest's exit code and output. Test modules stay imported from run to run."""
    arguments = [
        "-x",
        "--tb=short",
        "--assert=plain",
        "--hypothesis-profile=mutants",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:unraisableexception",
    ]  # that plugin collects garbage for half a second per run
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = pytest.main(arguments + [str(HERE.parent / test) for test in tests])
    return code, out.getvalue()


def main(words: list[str]) -> int:
    baseline = "--skip-baseline" not in words
    chosen = [
        m
        for m in all_mutants()
        if all(word in str(m) for word in words if word != "--skip-baseline")
    ]
    if not chosen:  # pytest without a name would run all tests
        print(f"no mutant has the words {' '.join(words)}")
        return 1
    start = time.perf_counter()
    # No shrinking of counter-examples: it is enough that a test fails.
    settings.register_profile(
        "mutants",
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=40,
        phases=[Phase.explicit, Phase.generate],
    )
    if baseline:
        code, output = run_tests(sorted({m.test for m in chosen}))
        if code != pytest.ExitCode.OK:
            print(
                output,
                f"the named tests must pass before any mutant is tried, and pytest says {code!r}",
                sep="\n",
            )
            return 2
    killed = 0
    for m in chosen:
        says = verdict(m)
        killed += says == "killed by"
        print(f"{m.bug:>3}  {m.says:<72} {says} {m.test}", flush=True)
    print(f"{killed} of {len(chosen)} mutants killed in {time.perf_counter() - start:.0f} s")
    return 1 if killed < len(chosen) else 0


def verdict(m: Mutant) -> str:
    try:
        with applied(m):
            code, output = run_tests([m.test])
    except StaleMutant as error:
        return f"STALE: {error};"
    if code == pytest.ExitCode.OK:
        return "ALIVE after"
    if code != FAILED or "NameError" in output:  # an edit that cannot run proves nothing
        return f"{output}\nERROR, pytest says {code!r}, in"
    return "killed by"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
