"""Methods and planned comparisons.

A method is a recipe of igpo/recipes.py, or a recipe with what changed behind it:

    grpo      paper - penalty      uncentred / std      raw_ig / rms - penalty
"""

import re
from collections.abc import Collection
from dataclasses import replace

from minvenus.config import ConfigError
from minvenus.igpo.recipes import RECIPES, Recipe

RATES = ("3e-4", "6e-4", "9e-4", "12e-4", "18e-4")
CHANGES: dict[str, dict] = {      # behind a recipe's name -> the settings of train_igpo.py
    "- penalty": {"format_penalty": None},      # a malformed turn keeps its gain and its outcome
    "+ penalty": {"format_penalty": 1.0},       # of grpo: a malformed answer is paid -1
    "/ gamma .95": {"gamma": 0.95},
    "/ gamma 1": {"gamma": 1.0},
    "/ prob": {"gain": "prob"},
    "/ unscaled": {"normalize": "separate"},    # z-scores without IG-Scale
    "/ std": {"spread": "std"},
    "/ rms": {"spread": "rms"},
    "/ one": {"spread": "one"},
    "/ every turn": {"browse": "off"},          # a gain for every turn, searches too
    "/ reference": {"gain_policy": "reference"},        # gains from the frozen start checkpoint
    "/ groups of 8": {"group": 8, "questions": 4},
    "/ token-mean": {"aggregate": "token-mean"},
    "/ token-sum": {"aggregate": "seq-mean-token-sum"},
    **{f"/ rate {rate}": {"learning_rate": rate} for rate in RATES},
}
METHODS = ("grpo", "paper - penalty", "released - penalty", "raw_ig / rms - penalty",
           "uncentred - penalty")
PRESETS: dict[str, dict] = {
    "methods": {},
    # the starts and first seeds of above, with the penalty of -1 for a malformed turn
    "penalty": {
        "out": "runs/penalty",
        "seeds": 5,
        "methods": "grpo + penalty, paper, released, raw_ig / rms, uncentred",
    },
    # no page but the last holds a part of the answer
    "last": {
        "out": "runs/last",
        "first_sft_seed": 130,
        "first_seed": 13_000,
        "first_sampling_seed": 313_000,
        "asks": "last",
        "methods": "grpo, paper - penalty, uncentred - penalty",
    },
    # a right answer is rare at the start, below 1 %: outcomes alone have little to begin with
    "sparse": {
        "out": "runs/sparse",
        "seeds": 5,
        "first_seed": 14_000,
        "first_sampling_seed": 314_000,
        "first_sft_seed": 140,
        "hops": 5,
        "wrong_result": 0.7,
        "steps": 60,
        "methods": "grpo, paper - penalty, uncentred - penalty",
    },
    "rates": {
        "out": "runs/rates",
        "seeds": 3,
        "checkpoints": 3,
        "first_seed": 12_000,
        "first_sampling_seed": 312_000,
        "first_sft_seed": 120,
        "methods": ", ".join(f"{method} / rate {rate}" for method in METHODS for rate in RATES),
    },
    # each at the rate that was best for it there
    "own": {
        "out": "runs/own",
        "seeds": 5,
        "first_seed": 16_000,
        "first_sampling_seed": 316_000,
        "first_sft_seed": 160,
        "methods": "grpo / rate 9e-4, paper - penalty / rate 9e-4, released - penalty / rate 12e-4,"
                   " raw_ig / rms - penalty / rate 9e-4, uncentred - penalty / rate 12e-4",
    },
}


def split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def split_method(method: str) -> list[str]:
    """"raw_ig / rms - penalty" -> ["raw_ig", "/ rms", "- penalty"]"""
    return re.split(r" (?=[-+/] )", method)


def check_names(
    setting: str, text: str, known: Collection[str], changes: Collection[str] = ()
) -> None:
    """Raise unless a setting is names out of `known`, perhaps with changes, each once."""
    names = split_names(text)
    valid = len(set(names)) == len(names)
    for name in names:
        first, *rest = split_method(name)
        valid = valid and first in known and set(rest) <= set(changes)
    if not valid:
        after = f", or such a name with changes behind it: {', '.join(changes)}" if changes else ""
        raise ConfigError(
            f"{setting} must be some of {', '.join(known)}, each once{after}; got {text!r}")


def method_settings(method: str) -> dict:
    """The settings of train_igpo.py that make a method: its recipe's name, and what changed."""
    recipe, *changes = split_method(method)
    settings = {"recipe": recipe}
    for change in changes:
        settings |= CHANGES[change]
    return settings


def method_recipe(method: str) -> Recipe:
    """The recipe of a method whose changes are all of the recipe."""
    settings = method_settings(method)
    recipe = RECIPES[settings.pop("recipe")]
    return replace(recipe, **settings)
