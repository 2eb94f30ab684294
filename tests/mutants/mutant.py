"""A mutant: one known bug as a small wrong edit of our own code, and the test that must notice it.

    mutant(12, "gain one turn late",
           "igpo/test_gain.py::test_gains_of_a_small_trajectory_worked_by_hand",
           "minvenus.igpo.gain:segment_gains", "gains[after - 1] =", "gains[after] =")

An edit names a function or a method (`module:Class.method`), an old text that must occur exactly
once in the function's source, and the text that replaces it; several edits are tuples of these
three. The function is compiled with the edit and its code is put into the function object that
everybody has imported already, so no file is written and nothing is imported twice. Keep the old
text short: it has to survive other changes of the function. Default values of arguments are not
part of a function's code and cannot be edited.
"""

import ast
import contextlib
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType

ROOT = Path(__file__).resolve().parents[2]


class StaleMutant(Exception):
    """The mutant no longer fits the code."""


@dataclass(frozen=True)
class Mutant:
    bug: int  # number in the list of known bugs
    says: str  # the mistake in words
    test: str  # the test that must fail, below tests/
    edits: tuple[tuple[str, str, str], ...]  # (target, old text, new text)


def mutant(bug: int, says: str, test: str, *edits) -> Mutant:
    """One edit as three texts, or several as tuples of three."""
    if edits and isinstance(edits[0], str):
        edits = (edits,)
    return Mutant(bug, says, test, edits)


@contextlib.contextmanager
def applied(m: Mutant) -> Iterator[None]:
    """While this lasts, the functions that the mutant names have its mistake in them."""
    codes = {function_at(target): code for target, code in edited_codes(m).items()}
    originals = {function: function.__code__ for function in codes}
    try:
        for function, code in codes.items():
            function.__code__ = code
        yield
    finally:
        for function, code in originals.items():
            function.__code__ = code


def edited_codes(m: Mutant) -> dict[str, CodeType]:
    """Target -> its code with the edits. Reads files and imports nothing."""
    codes = {}
    for target in dict.fromkeys(target for target, _, _ in m.edits):
        path, first, last = place_of(target)
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        source = "".join(lines[first:last])
        for edited, old, new in m.edits:
            if edited != target:
                continue
            if source.count(old) != 1:
                raise StaleMutant(f"{target}: {source.count(old)} places read {old!r}, not one")
            source = source.replace(old, new)
        lines[first:last] = [source]
        code = compile("".join(lines), str(path), "exec")
        codes[target] = code_named(code, target.partition(":")[2])
    return codes


def check_test(m: Mutant) -> None:
    """The test of a mutant must exist, as far as that can be seen without running anything."""
    file, *names = m.test.partition("[")[0].split("::")
    path = ROOT / "tests" / file
    if not path.is_file():
        raise StaleMutant(f"there is no tests/{file}")
    text = path.read_text(encoding="utf-8")
    if names and not re.search(rf"^((def|class) )?{names[0]}\b", text, re.MULTILINE):
        raise StaleMutant(f"there is no test {m.test}")


def place_of(target: str) -> tuple[Path, int, int]:
    """The file of a function, its first line (counted from 0, decorators included) and its end."""
    module, _, names = target.partition(":")
    path = ROOT / (module.replace(".", "/") + ".py")
    if not path.is_file():
        raise StaleMutant(f"there is no module {module}")

    node = parsed(path)
    for name in names.split("."):
        inner = [child for child in ast.walk(node) if getattr(child, "name", None) == name]
        if not inner:
            raise StaleMutant(f"{target} does not exist")
        node = inner[0]
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        raise StaleMutant(f"{target} is no function")
    first = min(child.lineno for child in [node, *node.decorator_list])
    return path, first - 1, node.end_lineno


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def function_at(target: str) -> FunctionType:
    """The function object that `module:name` or `module:Class.name` names, without decorators."""
    module, _, names = target.partition(":")
    function = importlib.import_module(module)
    for name in names.split("."):
        function = inspect.getattr_static(function, name)
    for inner in ("fget", "func"):  # of a property, a cached property
        function = getattr(function, inner, function)
    return inspect.unwrap(function)


def code_named(code: CodeType, qualname: str) -> CodeType:
    """The code of one function inside the code of its module."""
    for inner in code.co_consts:
        if not isinstance(inner, CodeType):
            continue
        if inner.co_qualname == qualname:
            return inner
        if qualname.startswith(inner.co_qualname + "."):
            return code_named(inner, qualname)
    raise StaleMutant(f"{qualname} is not in its file")
