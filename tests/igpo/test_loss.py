"""The policy loss: value and gradient by the definition, masks, clipping, KL, aggregation and micro-batches, and inputs
at the edge of the number range (invariants 7, 37 and 40 to 46)."""

import math
import random

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from minvenus.igpo.loss import igpo_loss
from tests.igpo import oracle
from tests.igpo.strategies import Tokens, token_batches

HOW = ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum")
options_of_the_loss = st.fixed_dictionaries(
    {
        "clip_low": st.sampled_from((0.2, 0.1)),
        "clip_high": st.sampled_from((0.2, 0.28)),
        "dual_clip": st.sampled_from((None, 3.0, 1.5)),
        "kl_coef": st.sampled_from((0.0, 0.001, 0.5)),
        "aggregate": st.sampled_from(HOW),
    }
)


def tensors(batch: Tokens):
    """logp (a leaf with a gradient), old, ref, advantages, mask, each [B, L]."""
    columns = (batch.logp, batch.old, batch.ref, batch.advantages)
    logp, old, ref, advantages = (torch.tensor(x, dtype=torch.float64) for x in columns)
    return logp.requires_grad_(), old, ref, advantages, torch.tensor(batch.mask, dtype=torch.bool)


def loss_and_gradient(batch: Tokens, **options):
    inputs = tensors(batch)
    loss, _ = igpo_loss(*inputs, **options)
    loss.backward()
    return loss.item(), inputs[0].grad


def one_token(logp, old, advantage, ref=None, **options):
    """(loss, d loss / d logp) of a single token."""
    batch = Tokens([[logp]], [[old]], [[logp if ref is None else ref]], [[advantage]], [[True]])
    loss, gradient = loss_and_gradient(batch, **{"kl_coef": 0.0, **options})
    return loss, gradient.item()


# ------------------------------------------------------------------------------------------------------ the definition


@given(token_batches(), options_of_the_loss)
def test_loss_and_statistics_equal_their_definitions(batch, options):
    loss, stats = igpo_loss(*tensors(batch), **options)
    expected, policy, kl = oracle.loss(batch, **options)
    low, high, ceiling = 1 - options["clip_low"], 1 + options["clip_high"], options["dual_clip"]
    kept = batch.trained()
    ratios = [math.exp(oracle.clamp(new - old, -20.0, 20.0)) for new, old, _, _ in kept]
    clipped = [
        -a * oracle.clamp(r, low, high) > -a * r
        for r, (_, _, _, a) in zip(ratios, kept, strict=True)
    ]
    dual = [
        ceiling and a < 0 and r > max(ceiling, low)
        for r, (_, _, _, a) in zip(ratios, kept, strict=True)
    ]
    n = len(kept)
    wanted = {
        "policy_loss": policy,
        "kl": kl,
        "tokens": n,
        "clip_fraction": sum(clipped) / n,
        "dual_clip_fraction": sum(map(bool, dual)) / n,
        "approx_kl": math.fsum(old - new for new, old, _, _ in kept) / n,
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }
    assert stats | {"loss": loss.item()} == pytest.approx(
        wanted | {"loss": expected}, rel=1e-12, abs=1e-12
    )


def far_from_corners(batch: Tokens, options) -> bool:
    """Whether no token sits where the loss has a corner, which no difference quotient can follow."""
    for logp, old, ref, _ in batch.trained():
        ratio, x = math.exp(logp - old), ref - logp
        corners = (
            ratio - 1 + options["clip_low"],
            ratio - 1 - options["clip_high"],
            ratio - (options["dual_clip"] or 99.0),
            math.exp(x) - x - 11,
        )
        if min(map(abs, corners)) < 1e-4:
            return False
    return True


@given(token_batches(max_rows=3, max_length=4), options_of_the_loss)
def test_gradient_equals_finite_differences_of_the_definition(batch, options):
    assume(far_from_corners(batch, options))
    _, gradient = loss_and_gradient(batch, **options)
    h = 1e-6
    for b, row in enumerate(batch.logp):
        for k, logp in enumerate(row):
            row[k] = logp + h
            above = oracle.loss(batch, **options)[0]
            row[k] = logp - h
            below = oracle.loss(batch, **options)[0]
            row[k] = logp
            assert gradient[b, k].item() == pytest.approx(
                (above - below) / (2 * h), rel=1e-5, abs=1e-7
            )


@given(token_batches(), options_of_the_loss)
def test_no_gradient_flows_through_advantages_or_old_or_reference_log_probs(batch, options):
    """Invariant 7: they are constants, even when they come with a graph behind them."""
    logp, old, ref, advantages, mask = tensors(batch)
    graph = torch.ones((), dtype=torch.float64, requires_grad=True)
    loss, _ = igpo_loss(logp, old * graph, ref * graph, advantages * graph, mask, **options)
    loss.backward()
    assert graph.grad is None or graph.grad.item() == 0.0
    assert torch.equal(logp.grad, loss_and_gradient(batch, **options)[1])


def test_the_reference_is_needed_with_a_kl_term_only():
    one, mask = torch.tensor([[-1.0]]), torch.tensor([[True]])
    assert igpo_loss(one, one, None, torch.tensor([[2.0]]), mask, kl_coef=0.0)[0].item() == -2.0
    with pytest.raises(ValueError, match="ref_logp is needed"):
        igpo_loss(one, one, None, one, mask, kl_coef=0.001)


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


@pytest.mark.parametrize(
    "advantage, ratio, moves",
    [
        (1.0, 1.29, True),
        (1.0, 1.31, False),
        (1.0, 0.5, True),
        (1.0, math.exp(15.0), False),
        (-1.0, 0.91, True),
        (-1.0, 0.89, False),
        (-1.0, 2.9, True),
        (-1.0, math.exp(-15.0), False),
    ],
)
def test_clipping_stops_only_moves_that_went_far_enough_the_right_way(advantage, ratio, moves):
    """Invariant 43, clip range 0.9 to 1.3: good tokens above its top and bad ones below its bottom have no gradient
    left; the other sides keep theirs."""
    _, gradient = one_token(-1.0 + math.log(ratio), -1.0, advantage, clip_low=0.1, clip_high=0.3)
    assert gradient == (pytest.approx(-advantage * ratio, rel=1e-12) if moves else 0.0)


def test_dual_clip_bounds_the_loss_of_bad_tokens_only():
    """Invariant 43: with A < 0 and a ratio above c the loss is -A c and the gradient is gone; A > 0 is not touched."""
    assert one_token(math.log(4.0), 0.0, -2.0, dual_clip=3.0) == (pytest.approx(6.0), 0.0)
    assert one_token(math.log(4.0), 0.0, -2.0)[0] == pytest.approx(8.0)
    assert one_token(math.log(2.0), 0.0, -2.0, dual_clip=3.0) == (
        pytest.approx(4.0),
        pytest.approx(4.0),
    )
    assert one_token(math.log(4.0), 0.0, 2.0, dual_clip=3.0)[0] == pytest.approx(-2.4)


@given(st.floats(-6.0, 0.0), st.floats(-6.0, 0.0))
def test_k3_is_never_negative_and_pulls_towards_the_reference(logp, ref):
    """Invariant 42: k3 = e^x - x - 1 with x = log ref - log pi; zero with zero gradient iff equal; else the gradient
    has the sign of log pi - log ref, so that descending it closes the distance (until the cap 10)."""
    loss, gradient = one_token(logp, logp, 0.0, ref=ref, kl_coef=1.0)
    x = ref - logp
    k3 = math.exp(x) - x - 1
    assert loss == pytest.approx(min(k3, 10.0), rel=1e-9, abs=1e-12)
    assert loss >= 0
    if k3 < 9.999:
        assert gradient == pytest.approx(1 - math.exp(x), rel=1e-6, abs=1e-11)
    elif k3 > 10.001:
        assert gradient == 0


# --------------------------------------------------------------------------------------------------------------- masks


@given(token_batches(), options_of_the_loss, st.integers(0, 2**32 - 1))
def test_masked_positions_may_hold_anything_and_change_nothing(batch, options, seed):
    """Invariant 41, and more than it asks: also NaN and infinity. Their gradient is exactly zero."""
    rng = random.Random(seed)

    def poisoned(table):
        rows = zip(table, batch.mask, strict=True)
        garbage = (math.nan, math.inf, -math.inf, 1e300, -1e300, 0.0)
        return [
            [v if keep else rng.choice(garbage) for v, keep in zip(*row, strict=True)]
            for row in rows
        ]

    columns = (batch.logp, batch.old, batch.ref, batch.advantages)
    loss, gradient = loss_and_gradient(batch, **options)
    poisoned_loss, poisoned_gradient = loss_and_gradient(
        Tokens(*map(poisoned, columns), batch.mask), **options
    )
    assert poisoned_loss == loss
    assert torch.equal(poisoned_gradient, gradient)
    assert (poisoned_gradient[~torch.tensor(batch.mask)] == 0).all()


@given(token_batches(), options_of_the_loss)
def test_a_row_without_a_single_trained_token_influences_nothing(batch, options):
    """Invariant 37: padding rows are not counted as sequences."""
    length = len(batch.mask[0])
    numbers = ([[9.0] * length, *x] for x in (batch.logp, batch.old, batch.ref, batch.advantages))
    loss, gradient = loss_and_gradient(batch, **options)
    padded_loss, padded = loss_and_gradient(
        Tokens(*numbers, [[False] * length, *batch.mask]), **options
    )
    assert padded_loss == pytest.approx(loss, abs=1e-14)
    assert torch.allclose(padded[1:], gradient, atol=1e-15)
    assert (padded[0] == 0).all()


@pytest.mark.parametrize("counts", [{}, {"step_sequences": 4, "step_tokens": 40}])
def test_a_batch_of_padding_only_has_loss_zero_and_gradient_zero(counts):
    batch = Tokens([[math.nan, 1.0]], [[0.0, 0.0]], [[0.0, 0.0]], [[1.0, 1.0]], [[False, False]])
    loss, gradient = loss_and_gradient(batch, **counts)
    assert loss == 0
    assert (gradient == 0).all()


# ----------------------------------------------------------------------------------------- aggregation, micro-batches


def test_the_three_aggregations_worked_by_hand():
    """On policy, losses 1 and 3 in one sequence and 8 in the other."""
    same = [[0.0, 0.0], [0.0, 0.0]]
    batch = Tokens(same, same, same, [[-1.0, -3.0], [-8.0, -99.0]], [[True, True], [True, False]])
    losses = {how: loss_and_gradient(batch, aggregate=how)[0] for how in HOW}
    assert losses == pytest.approx(
        {"seq-mean-token-mean": 5.0, "token-mean": 4.0, "seq-mean-token-sum": 6.0}
    )


@pytest.mark.parametrize("how", HOW)
@given(batch=token_batches(max_rows=7), options=options_of_the_loss, seed=st.integers(0, 2**32 - 1))
def test_micro_batches_of_any_sizes_give_the_gradient_of_the_whole_step(how, batch, options, seed):
    """Rows are shuffled, cut anywhere and padded; the sums of losses and gradients are those of the whole step."""
    rng = random.Random(seed)
    options = options | {"aggregate": how}
    counts = {
        "step_sequences": sum(any(m) for m in batch.mask),
        "step_tokens": sum(sum(m) for m in batch.mask),
    }
    whole_loss, whole = loss_and_gradient(batch, **options)
    order = rng.sample(range(len(batch.mask)), len(batch.mask))
    total_loss, gradient = 0.0, torch.zeros_like(whole)
    while order:
        n = rng.randint(1, len(order))
        rows, order = order[:n], order[n:]
        padding = rng.randint(0, 2)
        part = [
            [x[i] + [0.0] * padding for i in rows]
            for x in (batch.logp, batch.old, batch.ref, batch.advantages)
        ]
        part.append([batch.mask[i] + [False] * padding for i in rows])
        loss, g = loss_and_gradient(Tokens(*part), **options, **counts)
        total_loss += loss
        gradient[rows] += g[:, : whole.shape[1]]
    assert total_loss == pytest.approx(whole_loss, rel=1e-12, abs=1e-12)
    assert torch.allclose(gradient, whole, rtol=1e-12, atol=1e-14)


# ---------------------------------------------------------------------------------------------------- the number range

extremes = st.sampled_from((0.0, -1.0, 20.0, 90.0, 1e30, -1e30, 3e38, -3e38, -1e-30))
tokens_at_the_edge = st.tuples(
    extremes, extremes, extremes, st.sampled_from((0.0, 1.0, -1.0, 1e25, -1e25))
)


@given(st.lists(tokens_at_the_edge, min_size=1, max_size=4), options_of_the_loss)
def test_loss_gradient_and_statistics_are_finite_for_any_finite_float32_log_probs(tokens, options):
    """Differences of log-probs may overflow float32; advantages up to 1e25 leave room for the largest ratio, e^20."""
    logp, old, ref, advantages = (
        torch.tensor([column], dtype=torch.float32) for column in zip(*tokens, strict=True)
    )
    logp.requires_grad_()
    loss, stats = igpo_loss(
        logp, old, ref, advantages, torch.ones_like(logp, dtype=torch.bool), **options
    )
    loss.backward()
    assert math.isfinite(loss.item())
    assert torch.isfinite(logp.grad).all()
    assert all(math.isfinite(v) for v in stats.values()), stats


def test_the_ratio_is_cut_at_e_to_the_20():
    assert one_token(0.0, -1e30, -1.0) == (pytest.approx(math.exp(20.0)), 0.0)
