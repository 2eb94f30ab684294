"""Show that the tests can fail: apply one mutant at a time and run the test that must notice it.

    python -m tests.mutants.run [--skip-baseline] [words]     those that have all words in their
                                                              description, targets, test or file
    python -m tests.mutants.run --check [words]               list those that no longer fit: seconds

Every file in this folder that defines MUTANTS is read. Exit code 0: all mutants were killed. Errors
are: a mutant that no longer fits the code, a named test that does not exist, or one that fails
without the mutant. The last is not checked with --skip-baseline, for use after the test suite,
which runs all these tests anyway.
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

from tests.mutants.mutant import Mutant, StaleMutant, applied, check_test, edited_codes

HERE = Path(__file__).resolve().parent
PYTEST = (
    "-x --tb=short --assert=plain --hypothesis-profile=mutants -p no:cacheprovider "
    "-p no:unraisableexception"  # that plugin collects garbage for half a second per run
)
# No shrinking of counter-examples: it is enough that a test fails.
settings.register_profile(
    "mutants",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=40,
    phases=[Phase.explicit, Phase.generate],
)


def all_mutants() -> list[tuple[str, Mutant]]:
    """Every mutant, with the name of its file."""
    mutants = []
    for file in pkgutil.iter_modules([str(HERE)]):
        module = importlib.import_module(f"tests.mutants.{file.name}")
        mutants += [(f"{file.name}.py", m) for m in getattr(module, "MUTANTS", ())]
    return mutants


def main(words: list[str]) -> int:
    flags = {word for word in words if word.startswith("--")}
    words = [word for word in words if word not in flags]
    chosen = [
        (file, m) for file, m in all_mutants() if all(word in f"{file} {m}" for word in words)
    ]
    if not chosen or flags - {"--check", "--skip-baseline"}:  # pytest without a name runs all tests
        print(f"no mutant has the words {' '.join(words)}" if not chosen else __doc__)
        return 1
    if "--check" in flags:
        return check(chosen)
    return kill([m for _, m in chosen], baseline="--skip-baseline" not in flags)


def check(mutants: list[tuple[str, Mutant]]) -> int:
    """Print the mutants that no longer fit the code or the tests. Nothing is run or imported."""
    stale = 0
    for file, m in mutants:
        for fits in (edited_codes, check_test):
            try:
                fits(m)
            except (StaleMutant, SyntaxError) as error:
                stale += 1
                print(f"tests/mutants/{file}: bug {m.bug}, {m.says}\n    {error}")
    print(f"{stale} errors in {len(mutants)} mutants")
    return 1 if stale else 0


def kill(mutants: list[Mutant], baseline: bool) -> int:
    start = time.perf_counter()
    if baseline:
        code, output = run_tests(sorted({m.test for m in mutants}))
        if code != pytest.ExitCode.OK:
            print(output)
            print(f"the named tests must pass before any mutant is tried, and pytest says {code!r}")
            return 2

    killed = 0
    for m in mutants:
        outcome = outcome_of(m)
        killed += outcome == "killed by"
        print(f"{m.bug:>3}  {m.says:<72} {outcome} {m.test}", flush=True)
    print(f"{killed} of {len(mutants)} mutants killed in {time.perf_counter() - start:.0f} s")
    return 1 if killed < len(mutants) else 0


def outcome_of(m: Mutant) -> str:
    try:
        with applied(m):
            code, output = run_tests([m.test])
    except StaleMutant as error:
        return f"STALE: {error};"
    if code == pytest.ExitCode.OK:
        return "ALIVE after"
    if code != pytest.ExitCode.TESTS_FAILED or "NameError" in output:
        # an edit that cannot run proves nothing
        return f"{output}\nERROR, pytest says {code!r}, in"
    return "killed by"


def run_tests(tests: list[str]) -> tuple[int, str]:
    """pytest's exit code and output. Test modules stay imported from run to run."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = pytest.main([*PYTEST.split(), *(str(HERE.parent / test) for test in tests)])
    return code, out.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
