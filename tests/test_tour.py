"""The tour: its cells run, its outputs are those that are stored, and its plain recipe is ours."""

import random
import re

import pytest

from docs import make_pages, tour
from minvenus.igpo.advantage import turn_advantages
from minvenus.igpo.gain import segment_gains
from minvenus.igpo.recipes import RECIPES
from minvenus.igpo.rewards import turn_rewards


@pytest.fixture(scope="module")
def names():
    """What the cells define."""
    return {}


def test_the_cells_give_the_stored_outputs(names):
    stored = tour.read_notebook()
    for cell, again in zip(stored["cells"], tour.run(stored, names)["cells"], strict=True):
        assert cell == again, "python -m docs.tour"


def test_links_of_the_tour_lead_somewhere():
    text = "".join("".join(cell["source"]) for cell in tour.read_notebook()["cells"])
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) >= 4
    for target in targets:
        assert (tour.DOCS / target).exists(), target


def test_the_pages_for_a_browser_are_those_of_the_notebook_and_their_links_lead_somewhere():
    again = "python -m docs.make_pages"
    index = (tour.DOCS / "index.html").read_text(encoding="utf-8")
    assert index == make_pages.index_page(), again
    page = (tour.DOCS / "tour.html").read_text(encoding="utf-8")
    assert page == make_pages.tour_page(tour.read_notebook()), again
    for target in re.findall(r'href="([^"]+)"', index + page):
        assert (tour.DOCS / target).exists(), target


def test_the_plain_recipe_equals_the_shipped_one_on_a_thousand_random_batches(names):
    if "paper_advantages" not in names:
        tour.run(tour.read_notebook(), names)
    paper = RECIPES["paper"]
    rng = random.Random(0)
    for _ in range(1000):
        batch = [random_rollout(rng) for _ in range(rng.randint(1, 6))]
        rewards = []
        for _, kinds, beliefs, malformed, outcome in batch:
            gains = segment_gains(beliefs, kinds, paper)
            rewards.append(turn_rewards(kinds, gains, malformed, outcome, paper))
        shipped = turn_advantages(rewards, [rollout[0] for rollout in batch], paper)
        for row, expected in zip(names["paper_advantages"](batch), shipped, strict=True):
            assert row == pytest.approx(expected, rel=1e-9, abs=1e-9)


def random_rollout(rng):
    turns = rng.randint(0, 6)
    kinds = [rng.choice(["search", "visit", "visit", "none"]) for _ in range(turns)] + ["answer"]
    beliefs = [rng.gauss(-2, 1) for _ in kinds]
    malformed = [rng.random() < 0.15 for _ in kinds]
    return rng.randrange(3), kinds, beliefs, malformed, float(rng.random() < 0.5)
