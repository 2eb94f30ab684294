"""How much a group can weigh: bounds that hold for every batch, and the one recipe that has none
under IG-Scale."""

import math
from dataclasses import replace

import pytest
from hypothesis import given

from minvenus.igpo.advantage import advantage_record
from minvenus.igpo.recipes import RECIPES, Recipe
from minvenus.types import TurnRewards
from tests.igpo.strategies import batches, recipes

UNCENTRED = RECIPES["uncentred"]


@given(batches(), recipes(spread="rms", normalize=("scaled", "separate")))
def test_over_the_root_mean_square_no_z_score_is_above_the_root_of_their_number(batch, recipe):
    record = advantage_record(batch.rewards, batch.groups, recipe)
    for group in set(batch.groups):
        z = []
        for row, name in zip(record.turn_z, batch.groups, strict=True):
            if name == group:
                z += [value for value in row if value is not None]
        assert all(abs(value) <= math.sqrt(len(z)) * (1 + 1e-9) for value in z)
        assert math.fsum(value * value for value in z) <= len(z) * (1 + 1e-9)


@given(batches(), recipes(normalize="scaled", spread="rms"))
def test_over_the_root_mean_square_ig_scale_never_silences_a_batch(batch, recipe):
    """Centred or not: mean |z| is at most 1, so s is at least .3 / 1.000001."""
    scale = advantage_record(batch.rewards, batch.groups, recipe).scale
    assert 0.299 <= scale <= 10


@given(batches(), recipes(normalize="scaled", spread="std", center_gain=True))
def test_the_same_holds_for_centred_gains_over_their_std(batch, recipe):
    assert 0.299 <= advantage_record(batch.rewards, batch.groups, recipe).scale <= 10


def sizes(recipe: Recipe) -> tuple[float, float, float]:
    """The largest gain term of a group with the gains .4 .4, of one with .6 -.1, and s."""
    gains = (0.4, 0.4, 0.6, -0.1)
    rewards = [TurnRewards([gain], 0.0) for gain in gains]  # no outcome is in any term
    record = advantage_record(rewards, [0, 0, 1, 1], recipe)
    terms = [abs(row[0]) for row in record.terms]
    return max(terms[:2]), max(terms[2:]), record.scale


def test_equal_gains_explode_over_their_std_and_weigh_1_over_their_root_mean_square():
    """z of .4 is .4 / (1e-4 + 1e-6) = 3,960 or 1; of .6 it is .6 / .35 or .6 / sqrt(.185)."""
    assert sizes(Recipe.raw_ig())[:2] == pytest.approx((3960.4, 0.6 / 0.35), rel=1e-3)
    assert sizes(Recipe.raw_ig(spread="rms"))[:2] == pytest.approx((1, 0.6 / 0.185**0.5), rel=1e-3)
    std, silenced, scale = sizes(replace(UNCENTRED, spread="std"))
    assert scale < 0.001 and std > 0.5 and silenced < 0.001, "all outcomes equal: mean size .3"
    equal, other, scale = sizes(UNCENTRED)
    assert 0.299 <= scale <= 0.4 and 0.25 < equal < other < 0.5
