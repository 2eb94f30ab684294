"""A frozen dataclass as the command line of a script, and as the run.json that is saved with a run.

    field_name: int = 3    # what it means          ->   --field-name 3, with the comment as its help
    bool                                            ->   --field-name / --no-field-name
    Literal["a", "b"]                               ->   only these values
    X | None                                        ->   the word none stands for None
    tuple[str, str] | None                          ->   --field-name A B
    in_: str                                        ->   --in, where the name is a keyword of Python
    agent: AgentConfig                              ->   a flag for each of its fields, beside the others
    recipe: Recipe                                  ->   the same, and --recipe NAME for one of Recipe.NAMES

Defaults, then `--preset NAME`, then `--config run.json`, then flags: the later wins. A misspelt flag or key, a value
of the wrong type and whatever the dataclass refuses end the program with exit code 2 and a message that says what
would be valid.
"""

import argparse
import difflib
import inspect
import re
import sys
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from minvenus.config import ConfigError, read_json
from minvenus.files import write_json


def parse_flags(cls, argv: list[str] | None = None, description: str | None = None,
                presets: dict[str, dict] | None = None, command: str = ""):
    """An instance of the dataclass `cls` from the command line; `presets` are named sets of its values, chosen by its
    field `preset`; `command` stands between the program's name and the flags."""
    parser = argparse.ArgumentParser(prog=program(command), description=description, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", metavar="FILE", help="start from a saved run.json; flags override it")
    add_flags(parser, cls)
    given, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(unknown_flag(unknown[0], parser))
    flags = vars(given)
    file = flags.pop("config")
    try:
        saved = read_json(file) if file else {}
        preset = flags.get("preset", saved.get("preset", ""))
        if saved.get("preset", preset) != preset:
            raise ConfigError(f"{file} is of preset {saved['preset']}: leave --preset {preset} out, or --config")
        return build(cls, (presets or {}).get(preset, {}) | saved, flags)
    except ValueError as error:                        # a ConfigError, or what a recipe refuses
        parser.error(str(error))


def save_config(config, folder) -> Path:
    """Write the settings as run.json into the run's folder, complete or not at all."""
    return write_json(Path(folder) / "run.json", asdict(config))


def build(cls, values: dict[str, Any], flags: dict[str, Any]):
    """The dataclass from saved or preset values (nested dataclasses are dictionaries) and from flags, which win."""
    names = [field.name for field in fields(cls)]
    unknown = [key for key in values if key not in names]
    if unknown:
        raise ConfigError(f"unknown keys {', '.join(unknown)}; valid keys are {', '.join(names)}")
    own = values | {name: flags[name] for name in names if name in flags}
    for field in fields(cls):
        name: str = field.name
        kind: Any = field.type
        if is_dataclass(kind):
            named: Any = getattr(kind, "NAMES", None)
            saved = values.get(name, {})
            if not isinstance(saved, dict):
                raise ConfigError(f"{name} must be an object with fields of its own, got {saved!r}")
            start: Any = named[flags[name]] if name in flags else field.default
            own[name] = build(kind, asdict(start) | ({} if name in flags else saved), flags)
        elif isinstance(own.get(name), list):                   # JSON and the command line have lists for tuples
            own[name] = tuple(own[name])
    return cls(**own)


def add_flags(parser: argparse.ArgumentParser, cls) -> None:
    # the comment after each field, read from the source
    comments = dict(re.findall(r"^\s+(\w+): .*?  # (.+)$", inspect.getsource(cls), re.MULTILINE))
    for field in fields(cls):
        kind: Any = field.type
        flag = "--" + field.name.rstrip("_").replace("_", "-")
        text = field.metadata.get("help") or comments[field.name]
        text += "" if is_dataclass(kind) else f" (default: {field.default})"
        shared: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
        if is_dataclass(kind):
            if hasattr(kind, "NAMES"):
                parser.add_argument(flag, choices=kind.NAMES, **shared)
            add_flags(parser, kind)
        elif kind is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, **shared)
        else:
            choices = get_args(kind) if get_origin(kind) is Literal else None
            count, read = reader(kind)
            shown = None if choices else "X"
            parser.add_argument(flag, type=read, choices=choices, nargs=count, metavar=shown, **shared)


def reader(kind) -> tuple[int | None, Any]:
    """How many values a flag takes, None for one, and the function that reads one of them."""
    inner = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        count, read = reader(next(k for k in inner if k is not NoneType))
        return count, lambda text: None if text.lower() == "none" else read(text)
    if get_origin(kind) is tuple:
        return len(inner), inner[0]
    if get_origin(kind) is Literal:
        return None, type(inner[0])
    return None, inner[0] if get_origin(kind) is Annotated else kind


def unknown_flag(word: str, parser: argparse.ArgumentParser) -> str:
    valid = sorted(flag for action in parser._actions for flag in action.option_strings if flag.startswith("--"))
    near = difflib.get_close_matches(word.split("=")[0], valid, n=1)
    said = f"unknown flag {word}" if word.startswith("-") else f"{word!r} follows no flag that takes it"
    return said + (f", did you mean {near[0]}?" if near else ".") + f" Valid flags: {' '.join(valid)}"


def program(command: str) -> str | None:
    """`python -m minvenus.sft COMMAND` instead of `__main__.py`; None = the script's own name."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return f"python -m {spec.name.removesuffix('.__main__')} {command}".rstrip() if spec else None
