"""The policy loss: its value by the definition, masks, clipping, KL and aggregation (invariants 37 and 40 to 46)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minvenus.igpo.loss import igpo_loss
from tests.igpo import oracle
from tests.igpo.strategies import Tokens, token_batches

HOW = ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum")
aggregations = st.sampled_from(HOW)
settings_of_the_loss = st.fixed_dictionaries({
    "clip_low": st.sampled_from((0.2, 0.1)), "clip_high": st.sampled_from((0.2, 0.28)),
    "dual_clip": st.sampled_from((None, 3.0, 1.5)), "kl_coef": st.sampled_from((0.0, 0.001, 0.5))})


def tensors(batch: Tokens, dtype=torch.float64):
    """logp (a leaf with a gradient), old, ref, advantages, mask, each [B, L]."""
    logp, old, ref, advantages = (
        torch.tensor(x, dtype=dtype) for x in (batch.logp, batch.old, batch.ref, batch.advantages)
    )
    return logp.requires_grad_(), old, ref, advantages, torch.tensor(batch.mask, dtype=torch.bool)


def loss_and_gradient(batch: Tokens, **options):
    logp, old, ref, advantages, mask = tensors(batch)
    loss, _ = igpo_loss(logp, old, ref, advantages, mask, **options)
    loss.backward()
    return loss.item(), logp.grad


def one_token(logp, old, advantage, ref=None, **options):
    """(loss, d loss / d logp) of a single token."""
    batch = Tokens([[logp]], [[old]], [[logp if ref is None else ref]], [[advantage]], [[True]])
    loss, gradient = loss_and_gradient(batch, **{"kl_coef": 0.0, **options})
    return loss, gradient.item()


# ------------------------------------------------------------------------------------------------------ the definition


@given(token_batches(), settings_of_the_loss, aggregations)
def test_loss_equals_the_definition(batch, options, how):
    logp, old, ref, advantages, mask = tensors(batch)
    loss, stats = igpo_loss(logp, old, ref, advantages, mask, aggregate=how, **options)
    expected, policy, kl = oracle.loss(
        batch.logp, batch.old, batch.ref, batch.advantages, batch.mask, how=how, **options
    )
    assert loss.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert float(stats["policy_loss"]) == pytest.approx(policy, rel=1e-12, abs=1e-12)
    if options["kl_coef"]:
        assert float(stats["kl"]) == pytest.approx(kl, rel=1e-12, abs=1e-12)


@given(token_batches(), settings_of_the_loss)
def test_statistics_equal_their_definitions(batch, options):
    logp, old, ref, advantages, mask = tensors(batch)
    _, stats = igpo_loss(logp, old, ref, advantages, mask, **options)
    kept = [(batch.logp[b][k], batch.old[b][k], batch.advantages[b][k])
            for b in range(len(batch.mask)) for k in range(len(batch.mask[b])) if batch.mask[b][k]]
    ratios = [math.exp(oracle.clamp(new - old, -20.0, 20.0)) for new, old, _ in kept]
    clipped = [-a * oracle.clamp(r, 1 - options["clip_low"], 1 + options["clip_high"]) > -a * r
               for r, (_, _, a) in zip(ratios, kept, strict=True)]
    dual = [options["dual_clip"] is not None and a < 0 and r > max(options["dual_clip"], 1 - options["clip_low"])
            for r, (_, _, a) in zip(ratios, kept, strict=True)]
    n = len(kept)
    assert float(stats["clip_fraction"]) == pytest.approx(sum(clipped) / n, abs=1e-6)
    assert float(stats["dual_clip_fraction"]) == pytest.approx(sum(dual) / n, abs=1e-6)
    assert float(stats["approx_kl"]) == pytest.approx(math.fsum(old - new for new, old, _ in kept) / n, abs=1e-6)
    assert float(stats["ratio_min"]) == pytest.approx(min(ratios), rel=1e-6)
    assert float(stats["ratio_max"]) == pytest.approx(max(ratios), rel=1e-6)


def test_the_reference_is_not_needed_without_a_kl_term():
    logp = torch.tensor([[-1.0]], requires_grad=True)
    loss, _ = igpo_loss(logp, torch.tensor([[-1.0]]), None, torch.tensor([[2.0]]), torch.tensor([[True]]), kl_coef=0.0)
    assert loss.item() == -2.0


def test_a_missing_reference_with_a_kl_term_is_an_error():
    one = torch.tensor([[-1.0]])
    with pytest.raises(ValueError):
        igpo_loss(one, one, None, one, torch.tensor([[True]]), kl_coef=0.001)


def test_an_unknown_aggregation_is_an_error_that_lists_the_known_ones():
    one, mask = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match="seq-mean-token-mean"):
        igpo_loss(one, one, one, one, mask, aggregate="mean")


@pytest.mark.parametrize("wrong", range(5), ids=["logp", "old", "ref", "advantages", "mask"])
@pytest.mark.parametrize("shape", [(1, 3), (2, 1)])
def test_tensors_of_different_shapes_are_an_error_not_a_broadcast(wrong, shape):
    """A single row of advantages for two sequences would train both with the wrong credit."""
    inputs = [torch.zeros(2, 3) for _ in range(4)] + [torch.ones(2, 3, dtype=torch.bool)]
    inputs[wrong] = torch.ones(shape).to(inputs[wrong].dtype)
    with pytest.raises(ValueError):
        igpo_loss(*inputs)


# --------------------------------------------------------------------------------------------------------- clip and KL


@pytest.mark.parametrize("advantage, distance, moves", [
    (1.0, math.log(1.19), True), (1.0, math.log(1.21), False), (1.0, math.log(0.5), True), (1.0, 15.0, False),
    (-1.0, math.log(0.81), True), (-1.0, math.log(0.79), False), (-1.0, math.log(2.0), True), (-1.0, -15.0, False),
    (-1.0, math.log(2.9), True)])
def test_clipping_stops_only_moves_that_went_far_enough_the_right_way(advantage, distance, moves):
    """Invariant 43: good tokens above 1 + eps and bad ones below 1 - eps have no gradient left; the other sides keep
    theirs."""
    _, gradient = one_token(-1.0 + distance, -1.0, advantage)
    assert gradient == (pytest.approx(-advantage * math.exp(distance), rel=1e-12) if moves else 0.0)


@pytest.mark.parametrize(
    "ratio, good_moves, bad_moves",
    [
        (1.35, False, True),
        (1.25, True, True),
        (1.15, True, True),
        (0.95, True, True),
        (0.85, True, False),
        (0.75, True, False),
    ],
)
def test_the_two_clip_bounds_are_told_apart(ratio, good_moves, bad_moves):
    """Clip range 0.9 to 1.3: good tokens stop above its top, bad ones below its bottom."""
    options = {"clip_low": 0.1, "clip_high": 0.3}
    assert (one_token(math.log(ratio), 0.0, 2.0, **options)[1] != 0) == good_moves
    assert (one_token(math.log(ratio), 0.0, -2.0, **options)[1] != 0) == bad_moves


def test_dual_clip_bounds_the_loss_of_bad_tokens_only():
    """Invariant 43: with A < 0 and a ratio above c the loss is -A c and the gradient is gone; A > 0 is not touched."""
    assert one_token(math.log(4.0), 0.0, -2.0, dual_clip=3.0) == (pytest.approx(6.0), 0.0)
    assert one_token(math.log(4.0), 0.0, -2.0)[0] == pytest.approx(8.0)
    assert one_token(math.log(2.0), 0.0, -2.0, dual_clip=3.0) == (pytest.approx(4.0), pytest.approx(4.0))
    assert one_token(math.log(4.0), 0.0, 2.0, dual_clip=3.0)[0] == pytest.approx(-2.4)


@given(st.floats(-6.0, 0.0), st.floats(-6.0, 0.0))
def test_k3_is_never_negative_and_pulls_towards_the_reference(logp, ref):
    """Invariant 42: k3 = e^x - x - 1 with x = log ref - log pi; zero with zero gradient iff equal; else the gradient
    has the sign of log pi - log ref, so that descending it closes the distance (until the cap 10)."""
    loss, gradient = one_token(logp, logp, 0.0, ref=ref, kl_coef=1.0)
    x = ref - logp
    assert loss == pytest.approx(min(math.exp(x) - x - 1, 10.0), rel=1e-9, abs=1e-12)
    assert loss >= 0
    if abs(x) < 1e-12:
        assert abs(gradient) <= 1e-11
    elif math.exp(x) - x - 1 < 9.999:
        assert gradient == pytest.approx(1 - math.exp(x), rel=1e-6, abs=1e-12)
    elif math.exp(x) - x - 1 > 10.001:
        assert gradient == 0


# --------------------------------------------------------------------------------------------------------- aggregation


def test_the_three_aggregations_worked_by_hand():
    """On policy, losses 1 and 3 in one sequence and 8 in the other."""
    same = [[0.0, 0.0], [0.0, 0.0]]
    batch = Tokens(same, same, same, [[-1.0, -3.0], [-8.0, -99.0]], [[True, True], [True, False]])
    losses = {how: loss_and_gradient(batch, aggregate=how)[0] for how in HOW}
    assert losses == pytest.approx({"seq-mean-token-mean": 5.0, "token-mean": 4.0, "seq-mean-token-sum": 6.0})
