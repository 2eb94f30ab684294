"""A frozen dataclass as the command line of a script, and as the run.json that is saved with a run.

    steps: int = setting(3, "what it means")     ->   --steps 3, with its help text
    bool                                         ->   --shuffle / --no-shuffle
    Literal["a", "b"]                            ->   only these values
    X | None                                     ->   the word none stands for None
    tuple[str, str] | None                       ->   --files A B
    in_: str                                     ->   --in, where the name is a keyword of Python
    agent: AgentConfig                           ->   a flag for each of its fields
    recipe: Recipe                               ->   the same, and --recipe NAME

Defaults, then `--preset NAME`, then `--config run.json`, then flags: the later wins. A misspelt
flag or key and a value that the dataclass refuses end the program with exit code 2 and a message
that says what would be valid.
"""

import argparse
import difflib
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from minvenus.config import ConfigError, read_json
from minvenus.files import write_json
from minvenus.igpo.recipes import RECIPES, Recipe


def parse_flags(cls, argv: list[str] | None = None, description: str | None = None,
                presets: dict[str, dict] | None = None, program: str | None = None):
    """An instance of the dataclass `cls` from the command line.

    `presets` are named sets of its values, chosen by its field `preset`. `program` is what a user
    types before the flags; None = the script's name.
    """
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE",
                        help="start from a saved run.json; flags override it")
    add_flags(parser, parser, cls)
    namespace, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(unknown_flag(unknown[0], parser))
    flags = vars(namespace)
    file = flags.pop("config")
    try:
        saved = read_json(file) if file else {}
        preset = flags.get("preset", saved.get("preset", ""))
        if saved.get("preset", preset) != preset:
            raise ConfigError(f"{file} is of preset {saved['preset']}: leave --preset {preset} "
                              "out, or --config")
        return build(cls, (presets or {}).get(preset, {}) | saved, flags)
    except ValueError as error:
        parser.error(str(error))


def save_config(config, folder) -> Path:
    """Write the settings as run.json into the run's folder, complete or not at all."""
    return write_json(Path(folder) / "run.json", asdict(config))


def build(cls, values: dict[str, Any], flags: dict[str, Any] | None = None):
    """The dataclass from saved or preset values and from flags, which win. A nested dataclass is a
    dictionary among the values; its flags stand beside the others."""
    flags = flags or {}
    names = [field.name for field in fields(cls)]
    unknown = [key for key in values if key not in names]
    if unknown:
        raise ConfigError(f"unknown keys {', '.join(unknown)}; valid keys are {', '.join(names)}")

    given = values | flags
    arguments = {}
    for field in fields(cls):
        name, kind = field.name, field.type
        if is_dataclass(kind):
            nested = values.get(name, {})
            if not isinstance(nested, dict):
                raise ConfigError(f"{name} must be an object with fields, got {nested!r}")
            if kind is Recipe and name in flags:  # a name replaces the saved recipe as a whole
                nested = asdict(RECIPES[flags[name]])
            arguments[name] = build(kind, nested, flags)
        elif name in given:
            value = given[name]
            # argparse and JSON give lists
            arguments[name] = tuple(value) if isinstance(value, list) else value
    return cls(**arguments)


def add_flags(parser: argparse.ArgumentParser, group, cls):
    """A flag for each field that has a help text. Returns the group of the last one."""
    for field in fields(cls):
        if field.metadata.get("heading"):
            group = parser.add_argument_group(field.metadata["heading"])
        flag = "--" + field.name.rstrip("_").replace("_", "-")
        help_text = field.metadata.get("help", "").replace("%", "%%")
        default_text = f" (default: {field.default})"
        shared = {"dest": field.name, "default": argparse.SUPPRESS}
        kind: Any = field.type
        if is_dataclass(kind):
            if kind is Recipe:
                group.add_argument(flag, choices=RECIPES, help=help_text, **shared)
            group = add_flags(parser, group, kind)
        elif not help_text:
            continue  # a field that is no flag
        else:
            group.add_argument(flag, help=help_text + default_text, **value_options(kind), **shared)
    return group


def value_options(kind) -> dict[str, Any]:
    """How argparse reads the values of a flag of this type."""
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(kind) in (Union, UnionType):
        [kind] = [choice for choice in get_args(kind) if choice is not NoneType]
        options = value_options(kind)
        read = options["type"]
        options["type"] = lambda text: None if text.lower() == "none" else read(text)
        if "choices" in options:
            options["choices"] = [*options["choices"], None]
        return options
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return {"type": type(choices[0]), "choices": choices}
    if get_origin(kind) is tuple:
        return {"type": str, "nargs": len(get_args(kind)), "metavar": "X"}
    return {"type": kind, "metavar": "X"}


def unknown_flag(word: str, parser: argparse.ArgumentParser) -> str:
    """The message for a word that no flag takes: the nearest flag, and all of them."""
    valid = [flag for action in parser._actions for flag in action.option_strings]
    nearest = difflib.get_close_matches(word.split("=")[0], valid, n=1)
    hint = f", did you mean {nearest[0]}?" if nearest else "."
    return f"unknown flag {word}{hint} Valid flags: {' '.join(valid)}"
