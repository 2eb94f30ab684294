"""What the demo's recipe makes of the demo's first batch.

fixtures/demo_first_batch.jsonl is that batch for the calculator: 32 rollouts of 8 questions, the
mean log-prob of the truth before each turn. Of two questions some answers are right, of five none;
of question 7, which has one hop, all are, and every visit gained nearly the same.
"""

import json
from dataclasses import replace
from pathlib import Path

from minvenus.experiments.calculator import read_samples
from minvenus.igpo.credit import assign_credit
from minvenus.igpo.recipes import RECIPES, Recipe

FILE = Path(__file__).parents[1] / "fixtures" / "demo_first_batch.jsonl"
RECORDS = [("line", json.loads(line)) for line in FILE.read_text().splitlines()]
SAMPLES = read_samples(RECORDS)
DEMO = replace(RECIPES["uncentred"], format_penalty=None)
STD = replace(DEMO, spread="std")


def test_the_numbers_that_the_page_of_recipes_gives_of_this_batch():
    text = " ".join((FILE.parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8").split())
    record = {}
    for recipe in (Recipe.raw_ig(format_penalty=None), STD, DEMO):
        credit = assign_credit(SAMPLES, recipe)
        largest = max(abs(a) for row in credit.advantages for a in row)
        record[recipe] = largest, f"{credit.record.scale:.3g}".removeprefix("0")
    (raw, _), (std, silenced), (rms, scale) = record.values()
    assert f"is {raw:,.0f} under `raw_ig - penalty`;" in text
    assert f"it is {std:.0f}, and IG-Scale {float(silenced):.1g}".replace("0.", ".") in text
    assert f"`uncentred - penalty` {rms:.1f} and {scale}." in text
