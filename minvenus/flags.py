"""A frozen dataclass as the command line of a script, and as the run.json that is saved with a run.

    field_name: int = 3    # what it means          ->   --field-name 3, with the comment as its help
    bool                                            ->   --field-name / --no-field-name
    Literal["a", "b"]                               ->   only these values
    X | None                                        ->   the word none stands for None
    tuple[str, str] | None                          ->   --field-name A B
    in_: str                                        ->   --in, where the name is a word of Python's own
    recipe: Recipe                                  ->   --recipe NAME (one of Recipe.NAMES), and a flag for each of its fields

Defaults, then `--preset NAME`, then `--config run.json`, then flags: the later wins. A misspelt flag or key, a value of the wrong
type and whatever the dataclass itself refuses end the program with exit code 2 and a message that names what would be valid.
"""

import argparse
import ast
import difflib
import inspect
import io
import json
import math
import os
import textwrap
import tokenize
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from minvenus.config import ConfigError, read_json


def parse_flags(cls, argv: list[str] | None = None, description: str | None = None, presets: dict[str, dict] | None = None):
    """An instance of the dataclass `cls` from the command line. Ends the program with code 2 if that is impossible.
    `presets` are named sets of field values."""
    parser = build_parser(cls, description)
    if presets:
        parser.add_argument("--preset", choices=presets, default=argparse.SUPPRESS, help="a named set of values")
    given, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(unknown_flag(unknown[0], parser))
    flags = vars(given)
    saved = flags.pop("config", None)
    named = (presets or {}).get(flags.pop("preset", ""), {})
    try:
        return assemble(cls, named | (load_values(cls, saved) if saved else {}), flags)
    except (ConfigError, ValueError) as error:
        parser.error(str(error))


def assemble(cls, values: dict[str, Any], flags: dict[str, Any]):
    """The dataclass from saved or preset values and from flags, which win; flags of nested dataclasses stand beside its own."""
    hints, own = get_type_hints(cls), dict(values)
    for field in fields(cls):
        name = field.name
        kind: Any = hints[name]
        if is_nested(kind):
            nested = own.get(name, field.default)
            nested = kind(**nested) if isinstance(nested, dict) else nested
            nested = getattr(kind, flags[name])() if name in flags else nested
            own[name] = replace(nested, **{f.name: flags[f.name] for f in fields(kind) if f.name in flags})
        elif name in flags:
            if not fits(flags[name], kind):                         # argparse itself makes an empty list of the value "--"
                raise ConfigError(f"{flag_of(name)} cannot take this value")
            own[name] = flags[name]
    return cls(**own)


def build_parser(cls, description: str | None = None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS,
                        help="start from a saved run.json; flags override it")
    add_flags(parser, cls)
    return parser


def add_flags(parser: argparse.ArgumentParser, cls) -> None:
    comments, hints = field_comments(cls), get_type_hints(cls)
    for field in fields(cls):
        kind: Any = hints[field.name]
        text = comments[field.name] + ("" if is_nested(kind) else f" (default: {field.default})")
        shared: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
        if is_nested(kind):
            parser.add_argument(flag_of(field.name), choices=kind.NAMES, **shared)
            add_flags(parser, kind)
        elif kind is bool:
            parser.add_argument(flag_of(field.name), action=argparse.BooleanOptionalAction, **shared)
        else:
            choices = get_args(kind) if get_origin(kind) is Literal else None
            parser.add_argument(flag_of(field.name), type=reader(kind), choices=choices, nargs=several(kind),
                                metavar=None if choices else "X", **shared)


def is_nested(kind: Any) -> bool:
    return is_dataclass(kind)


def flag_of(name: str) -> str:
    return "--" + name.rstrip("_").replace("_", "-")


def several(kind) -> int | None:
    """How many values a flag takes, where it takes more than one."""
    if get_origin(kind) is UnionType:
        return several(next(k for k in get_args(kind) if k is not NoneType))
    return len(get_args(kind)) if get_origin(kind) is tuple else None


def reader(kind):
    """The function that turns a flag's text into a value of the field's type, or of one of a tuple's equal types."""
    if get_origin(kind) is tuple:
        return reader(get_args(kind)[0])
    if get_origin(kind) is UnionType:
        inner = reader(next(k for k in get_args(kind) if k is not NoneType))
        return lambda text: None if text.lower() == "none" else inner(text)
    if get_origin(kind) is Literal:
        return str
    if kind is float:
        return finite_number
    return kind


def finite_number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
    return value


def unknown_flag(word: str, parser: argparse.ArgumentParser) -> str:
    valid = sorted(flag for action in parser._actions for flag in action.option_strings if flag.startswith("--"))
    near = difflib.get_close_matches(word.split("=")[0], valid, n=1)
    return f"unknown flag {word}" + (f", did you mean {near[0]}?" if near else "") + f" Valid flags: {' '.join(valid)}"


def field_comments(cls) -> dict[str, str]:
    """The comment behind each field of a dataclass, read from its source."""
    source = textwrap.dedent(inspect.getsource(cls))
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokenize.generate_tokens(io.StringIO(source).readline)
                if token.type == tokenize.COMMENT}
    tree: Any = ast.parse(source)
    names = {field.name for field in fields(cls)}
    lines = {getattr(node.target, "id", ""): node.end_lineno or 0
             for node in tree.body[0].body if isinstance(node, ast.AnnAssign)}
    found = {name: comments.get(line, "") for name, line in lines.items() if name in names}
    missing = [name for name, text in found.items() if not text]
    if missing:
        raise TypeError(f"{cls.__name__}: every field needs a comment behind it, its help text; {', '.join(missing)} has none")
    return found


def load_values(cls, path) -> dict[str, Any]:
    """The fields of a saved run.json, every key and type checked."""
    values = read_json(path)
    check_values(cls, values, path)
    return values


def check_values(cls, values: dict, path) -> None:
    hints = {field.name: get_type_hints(cls)[field.name] for field in fields(cls)}
    unknown = [key for key in values if key not in hints]
    if unknown:
        raise ConfigError(f"{path}: unknown keys {', '.join(unknown)}; valid keys are {', '.join(hints)}")
    wrong = [f"{key} must be {type_name(hints[key])}, got {value!r}"
             for key, value in values.items() if not fits(value, hints[key])]
    if wrong:
        raise ConfigError(f"{path}: {'; '.join(wrong)}")
    for key, kind in hints.items():
        if is_nested(kind) and key in values:
            check_values(kind, values[key], path)


def fits(value, kind) -> bool:
    """Whether a JSON value has the field's type. True is not a number, and 3 is a float."""
    if is_nested(kind):
        return isinstance(value, dict)
    if get_origin(kind) is UnionType:
        return any(fits(value, k) for k in get_args(kind))
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:                                   # a list in JSON and from the command line
        return type(value) in (list, tuple) and len(value) == several(kind) and all(map(fits, value, get_args(kind)))
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is kind


def type_name(kind) -> str:
    return f"one of {', '.join(get_args(kind))}" if get_origin(kind) is Literal else getattr(kind, "__name__", str(kind))


def save_config(config, folder) -> Path:
    """Write the resolved config as run.json into the run's folder, whole or not at all."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / f".run.json.{os.getpid()}"
    beside.write_text(json.dumps(asdict(config), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(folder / "run.json")
    return folder / "run.json"
