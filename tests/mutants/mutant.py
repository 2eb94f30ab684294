"""A mutant: one known bug as a small wrong edit of our own code, and the test that must notice it.

    mutant(12, "gain one turn late", "igpo/test_gain.py::test_gains_of_a_small_trajectory_worked_by_hand",
           ("minvenus.igpo.gain:segment_gains", "gains[after - 1] =", "gains[after] ="))

An edit names a function or a method (`module:Class.method`), an old text that must occur exactly once in the
function's source, and the text that replaces it. The body of the function is compiled with the edit and put into
the function object that everybody has imported already, so no file is written and nothing is imported twice.
Keep the old text short: it has to survive other changes of the function. Default values of arguments are not part
of a function's body and cannot be edited.
"""

import contextlib
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType


class StaleMutant(Exception):
    """The mutant no longer fits the code."""


@dataclass(frozen=True)
class Mutant:
    bug: int  # number in the list of known bugs
    says: str  # the mistake in words
    test: str  # the test that must fail, below tests/
    edits: tuple[tuple[str, str, str], ...]  # (target, old text, new text)


def mutant(bug: int, says: str, test: str, *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(bug, says, test, edits)


@contextlib.contextmanager
def applied(m: Mutant) -> Iterator[None]:
    """While this lasts, the functions that the mutant names have its mistake in them."""
    edited = edited_codes(m)
    originals = {f: f.__code__ for f in edited}
    try:
        for f, code in edited.items():
            f.__code__ = code
        yield
    finally:
        for f, code in originals.items():
            f.__code__ = code


def edited_codes(m: Mutant) -> dict[FunctionType, CodeType]:
    """The new code of every function that the mutant edits: its whole file compiled with the edits."""
    codes = {}
    for target in dict.fromkeys(target for target, _, _ in m.edits):
        function = function_at(target)
        lines, first = inspect.getsourcelines(function)
        body = "".join(lines)
        for old, new in ((old, new) for edited, old, new in m.edits if edited == target):
            if body.count(old) != 1:
                raise StaleMutant(
                    f"{target}: {body.count(old)} places read {old!r}, expected one; adapt the mutant "
                    f"(bug {m.bug}: {m.says})"
                )
            body = body.replace(old, new)
        path = inspect.getsourcefile(function)
        source = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
        source[first - 1 : first - 1 + len(lines)] = [body]
        codes[function] = code_named(compile("".join(source), path, "exec"), function.__qualname__)
    return codes


def function_at(target: str) -> FunctionType:
    """The function object that `module:name` or `module:Class.name` names, without its decorators."""
    module, _, path = target.partition(":")
    found = importlib.import_module(module)
    try:
        for name in path.split("."):
            found = inspect.getattr_static(found, name)
    except AttributeError:
        raise StaleMutant(f"{target} does not exist") from None
    for inner in ("fget", "func"):  # of a property, a cached property
        found = getattr(found, inner, found)
    found = inspect.unwrap(found)
    if not inspect.isfunction(found):
        raise StaleMutant(f"{target} is no function")
    return found


def code_named(code: CodeType, qualname: str) -> CodeType:
    """The code of one function inside the code of its module."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    for found in inner:
        if found.co_qualname == qualname:
            return found
        if qualname.startswith(found.co_qualname + "."):
            return code_named(found, qualname)
    raise StaleMutant(f"{qualname} is not in its file")
