"""How much a group can weigh: bounds that hold for every batch, and the one recipe that has none
under IG-Scale."""

import math

from hypothesis import given

from minvenus.igpo.advantage import advantage_record
from tests.igpo.strategies import batches, recipes


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
