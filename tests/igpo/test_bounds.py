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


over_rms = recipes(normalize="scaled", spread="rms")
centred = recipes(normalize="scaled", spread="std", center_gain=True)


@given(batches(), over_rms | centred)
def test_over_the_root_mean_square_or_centred_ig_scale_never_silences_a_batch(batch, recipe):
    """Mean |z| is at most 1, so s is at least .3 / 1.000001."""
    assert 0.299 <= advantage_record(batch.rewards, batch.groups, recipe).scale <= 10
