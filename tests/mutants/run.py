"""Show that the tests can fail: put one mistake of the catalogue at a time into the code and run the test that must notice it.

    python -m tests.mutants.run [words of a mutant's description]

The edited source is compiled and its function bodies are put into the functions that the tests have already imported, so no file
is written and nothing is imported twice. Exit code 0: every mutant was killed. A mutant whose old text is gone, a named test
that does not exist or that fails without the mutant are errors.
"""

import contextlib
import importlib
import inspect
import io
import sys
import time
import types
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests.mutants.catalogue import MUTANTS, Mutant

TESTS = Path(__file__).resolve().parents[1]
FAILED = pytest.ExitCode.TESTS_FAILED


class StaleMutant(Exception):
    """The catalogue no longer fits the code."""


def edited_source(mutant: Mutant) -> str:
    source = Path(importlib.import_module(mutant.module).__file__).read_text(encoding="utf-8")
    for old, new in mutant.edits:
        if source.count(old) != 1:
            raise StaleMutant(f"{mutant.module}: {source.count(old)} places read {old!r}, expected one; adapt the mutant "
                              f"({mutant.bug}: {mutant.says}) to the code")
        source = source.replace(old, new)
    return source


@contextlib.contextmanager
def applied(mutant: Mutant):
    """The module with the mistake in it. Functions keep their identity, so importers see the change too."""
    module = importlib.import_module(mutant.module)
    code, wrong = compile(edited_source(mutant), f"<mutant of {mutant.module}>", "exec"), types.ModuleType(mutant.module)
    sys.modules[mutant.module] = wrong                   # dataclasses look their module up while it is executed
    try:
        exec(code, wrong.__dict__)
    finally:
        sys.modules[mutant.module] = module
    originals = {f: f.__code__ for name in dir(module) for f in [inspect.unwrap(getattr(module, name))]
                 if inspect.isfunction(f) and f.__module__ == mutant.module}
    try:
        for f in originals:
            f.__code__ = inspect.unwrap(getattr(wrong, f.__name__)).__code__
        yield
    finally:
        for f, code in originals.items():
            f.__code__ = code


def run_tests(tests: list[str]) -> tuple[int, str]:
    """pytest's exit code and output. Test modules stay imported from run to run."""
    arguments = ["-x", "--tb=short", "--assert=plain", "--hypothesis-profile=mutants", "-p", "no:cacheprovider",
                 "-p", "no:unraisableexception"]                     # that plugin collects garbage for half a second per run
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = pytest.main(arguments + [str(TESTS / test) for test in tests])
    return code, out.getvalue()


def main(words: list[str]) -> int:
    chosen = [m for m in MUTANTS if all(word in f"{m.bug} {m.says} {m.test}" for word in words)]
    start = time.perf_counter()
    # Without the phase that shrinks counter-examples: that a test fails is all we want to know.
    settings.register_profile("mutants", derandomize=True, database=None, deadline=None, max_examples=40,
                              phases=[Phase.explicit, Phase.generate])
    code, output = run_tests(sorted({m.test for m in chosen}))
    if code != pytest.ExitCode.OK:
        print(output, f"the named tests must pass before any mutant is tried, and pytest says {code!r}", sep="\n")
        return 2
    alive = []
    for m in chosen:
        with applied(m):
            code, output = run_tests([m.test])
        if code not in (FAILED, pytest.ExitCode.OK) or "NameError" in output:       # an edit that cannot run proves nothing
            print(output, f"{m.says}: pytest says {code!r}", sep="\n")
            return 2
        alive += [m] if code != FAILED else []
        print(f"{m.bug:>3}  {m.says:<72} {'ALIVE after' if m in alive else 'killed by'} {m.test}", flush=True)
    print(f"{len(chosen) - len(alive)} of {len(chosen)} mutants killed in {time.perf_counter() - start:.0f} s")
    return 1 if alive or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
