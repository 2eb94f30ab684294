"""What the demo's recipe makes of the demo's first batch, and that its X-ray shows it.

fixtures/demo_first_batch.jsonl is that batch for the calculator: 32 rollouts of 8 questions, the
mean log-prob of the truth before each turn. Of two questions some answers are right, of five none;
of question 7, which has one hop, all are, and every visit gained nearly the same.
"""

import json
from dataclasses import replace
from pathlib import Path

from minvenus.experiments.calculator import CreditConfig, main, read_samples
from minvenus.igpo.credit import assign_credit
from minvenus.igpo.recipes import RECIPES, Recipe
from tests.report.examples import Part

FILE = Path(__file__).parents[1] / "fixtures" / "demo_first_batch.jsonl"
RECORDS = [("line", json.loads(line)) for line in FILE.read_text().splitlines()]
SAMPLES = read_samples(RECORDS)
DEMO = replace(RECIPES["uncentred"], format_penalty=None)
STD = replace(DEMO, spread="std")
DECIDED = (1, 2)  # the questions with right and wrong answers


def strengths(recipe: Recipe, folder) -> dict[str, list[set[int]]]:
    """Recipe -> per group the strengths of its turns' colours, 0 to 5, on the X-ray page."""
    page = folder / "xray.html"
    main(CreditConfig(file=str(FILE), recipe=recipe, page=str(page)))
    colours: dict[str, list[set[int]]] = {}
    for group in Part.of(page).all("group"):
        own: dict[str, set[int]] = {}
        for strip in group.all("strip"):
            name, *letters = (strip[i] for i in range(len(strip)))
            for letter in letters:
                own.setdefault(name.words, set()).add(int(letter.get("class").split()[1][1]))
        for name, shown in own.items():
            colours.setdefault(name, []).append(shown)
    return colours


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


def test_the_colours_of_the_x_ray_show_what_each_question_teaches(tmp_path):
    """Deep colours, of strength 2 to 5, in every group; over the std only where outcomes decide and
    in the group that explodes; for GRPO only where outcomes decide."""
    colours = strengths(DEMO, tmp_path)
    [own] = [name for name in colours if name not in RECIPES]
    deep = {name: [i for i, s in enumerate(colours[name]) if max(s) > 1] for name in colours}
    assert deep[own] == deep["uncentred"] == [*range(8)]
    assert deep["grpo"] == [*DECIDED]
    assert deep["raw_ig"] == [7]
    assert [max(shown) for shown in colours["grpo"]] == [5 * (i in DECIDED) for i in range(8)]
    colours = strengths(STD, tmp_path)
    [own] = [name for name in colours if name not in RECIPES]
    assert max(map(max, colours[own])) == 5 and max(colours[own][7]) == 5
    assert all(max(colours[own][i]) == 1 for i in (0, 3, 4, 5, 6)), "no colour but the palest"
