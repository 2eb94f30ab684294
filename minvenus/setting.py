"""A setting: a field of a dataclass with its help text and limits, and how such a class is checked.

flags.py makes command lines from these fields.
"""

import operator
import sys
from dataclasses import field, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "none",
}
LIMITS = {
    "least": ("of at least", operator.ge),
    "above": ("above", operator.gt),
    "most": ("of at most", operator.le),
    "below": ("below", operator.lt),
}


class ConfigError(ValueError):
    """A setting or a file that cannot be used; the message says what would be valid."""


def setting(default: Any, help: str, heading: str | None = None, **limits: float) -> Any:
    """A field of a settings dataclass: its default and its help text.

    `heading` begins a new group of flags. `limits` bound a number: least=1 (at least), above=0,
    most=1 (at most), below=1.
    """
    return field(default=default, metadata={"help": help, "heading": heading, "limits": limits})


def check_settings(settings) -> None:
    """Raise a ConfigError unless every field has its type, one of its choices, and its limits."""
    for f in fields(settings):
        value = getattr(settings, f.name)
        limits = f.metadata.get("limits", {})
        good = has_type(value, f.type)
        if good and value is not None:
            good = all(LIMITS[name][1](value, limit) for name, limit in limits.items())
        if not good:
            raise ConfigError(f"{f.name} must be {in_words(f.type, limits)}, got {value!r:.200}")


def has_type(value, kind: Any) -> bool:
    """Whether a value, perhaps from a JSON file, has this type. True is no number, 3 is a float,
    NaN is not."""
    origin = get_origin(kind)
    choices = get_args(kind)
    if origin in (Union, UnionType):
        return any(has_type(value, choice) for choice in choices)
    if origin is Literal:
        return value in choices and type(value) is type(choices[0])
    if origin is list:
        return type(value) is list and all(has_type(item, choices[0]) for item in value)
    if origin is tuple:
        return type(value) is tuple and tuple(map(type, value)) == choices
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    return type(value) is kind


def in_words(kind: Any, limits: dict[str, float]) -> str:
    """A type and its limits for a message: "a whole number of at least 1 or none"."""
    choices = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(in_words(choice, limits) for choice in choices)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, choices))
    if get_origin(kind) is list:
        return f"a list, each {in_words(choices[0], limits)}"
    words = WORDS.get(kind, str(kind))
    if kind in (int, float) and limits:
        bounds = [f"{LIMITS[name][0]} {limit:g}" for name, limit in limits.items()]
        words += " " + " and ".join(bounds)
    return words
