"""The policy loss: value and gradient by the definition, clipping, KL, aggregation and packs, and
inputs at the edge of the number range."""

import math
import random
from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minvenus.igpo.loss import LossConfig, igpo_loss, token_weights
from tests.igpo import oracle
from tests.igpo.strategies import AGGREGATIONS, Tokens, flat, loss_stats, token_batches

configs = st.builds(
    LossConfig,
    clip_low=st.sampled_from((0.2, 0.1)),
    clip_high=st.sampled_from((0.2, 0.28)),
    dual_clip=st.sampled_from((None, 3.0, 1.5)),
    kl_coef=st.sampled_from((0.0, 0.001, 0.5)),
    aggregate=st.sampled_from(AGGREGATIONS),
)


def inputs_of(batch: Tokens, config: LossConfig, rollouts=None, tokens=None, dtype=torch.float64):
    """What igpo_loss takes: flat tensors, the first one a leaf with a gradient. The batch is a
    whole step, or a part of one with so many rollouts and tokens."""
    columns = [torch.tensor(flat(column), dtype=dtype) for column in batch.columns()]
    segments = torch.tensor([i for i, row in enumerate(batch.logp) for _ in row])
    counts = rollouts or len(batch.logp), tokens or len(segments)
    weights = token_weights(segments, config.aggregate, *counts)
    columns[0].requires_grad_()
    return *columns, weights, config


def loss_and_gradient(batch: Tokens, config: LossConfig, **counts):
    inputs = inputs_of(batch, config, **counts)
    loss = igpo_loss(*inputs)
    loss.backward()
    return loss.item(), inputs[0].grad


def one_token(logp, old, advantage, ref=0.0, **options):
    """(loss, d loss / d logp) of a single token."""
    batch = Tokens([[logp]], [[old]], [[ref]], [[advantage]])
    loss, gradient = loss_and_gradient(batch, LossConfig(**{"kl_coef": 0.0} | options))
    return loss, gradient.item()


# ----------------------------------------------------------------------------------- the definition


@given(token_batches(), configs)
def test_loss_and_statistics_equal_their_definitions(batch, config):
    inputs = inputs_of(batch, config)
    expected, policy, kl = oracle.loss(batch, **asdict(config))
    assert igpo_loss(*inputs).item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    low, high, ceiling = 1 - config.clip_low, 1 + config.clip_high, config.dual_clip
    ratios, clipped, dual, differences = [], 0, 0, []
    for new, old, _, a in batch.tokens():
        ratio = math.exp(oracle.clamp(new - old, -20.0, 20.0))
        ratios.append(ratio)
        clipped += -a * oracle.clamp(ratio, low, high) > -a * ratio
        dual += bool(ceiling and a < 0 and ratio > max(ceiling, low))
        differences.append(old - new)
    assert loss_stats(*inputs) == pytest.approx(
        {
            "policy_loss": policy,
            "kl": kl,
            "clip_fraction": clipped,
            "dual_clip_fraction": dual,
            "approx_kl": math.fsum(differences),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        },
        rel=1e-12,
        abs=1e-12,
    )


@given(token_batches(), configs)
def test_no_gradient_flows_through_advantages_or_old_or_reference_log_probs(batch, config):
    """They are constants, even when they come with a graph behind them."""
    logp, *others, weights, config = inputs_of(batch, config)
    graph = torch.ones((), dtype=torch.float64, requires_grad=True)
    igpo_loss(logp, *(x * graph for x in others), weights, config).backward()
    assert graph.grad is None or graph.grad.item() == 0.0
    assert torch.equal(logp.grad, loss_and_gradient(batch, config)[1])


def test_the_reference_is_needed_with_a_kl_term_only():
    one = torch.ones(1)
    assert igpo_loss(one, one, None, 2 * one, one, LossConfig(kl_coef=0.0)).item() == -2.0
    with pytest.raises(ValueError, match=r"kl_coef is 0\.001: ref_logprobs must be like"):
        igpo_loss(one, one, None, one, one, LossConfig(kl_coef=0.001))


def test_an_unknown_aggregation_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match="aggregate must be one of seq-mean-token-mean"):
        LossConfig(aggregate="mean")


@pytest.mark.parametrize("wrong", range(5), ids=["logp", "old", "ref", "advantages", "weights"])
@pytest.mark.parametrize("shape", [(1,), (3, 1), (1, 3)])
def test_tensors_of_different_shapes_are_an_error_not_a_broadcast(wrong, shape):
    """A single advantage for all tokens would train them with the wrong credit."""
    inputs = [torch.zeros(3) for _ in range(5)]
    inputs[wrong] = torch.ones(shape)
    with pytest.raises(ValueError):
        igpo_loss(*inputs, LossConfig())


# -------------------------------------------------------------------------------------- clip and KL


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
    """Clip range 0.9 to 1.3: good tokens above its top and bad ones below its bottom have no
    gradient left; the other sides keep theirs."""
    _, gradient = one_token(-1.0 + math.log(ratio), -1.0, advantage, clip_low=0.1, clip_high=0.3)
    assert gradient == (pytest.approx(-advantage * ratio, rel=1e-12) if moves else 0.0)


def test_dual_clip_bounds_the_loss_of_bad_tokens_only():
    """With A < 0 and a ratio above c the loss is -A c and the gradient is gone; A > 0 is not
    touched."""
    assert one_token(math.log(4.0), 0.0, -2.0, dual_clip=3.0) == (pytest.approx(6.0), 0.0)
    assert one_token(math.log(4.0), 0.0, -2.0)[0] == pytest.approx(8.0)
    untouched = pytest.approx(4.0), pytest.approx(4.0)
    assert one_token(math.log(2.0), 0.0, -2.0, dual_clip=3.0) == untouched
    assert one_token(math.log(4.0), 0.0, 2.0, dual_clip=3.0)[0] == pytest.approx(-2.4)


@given(st.floats(-6.0, 0.0), st.floats(-6.0, 0.0))
def test_k3_is_never_negative_and_pulls_towards_the_reference(logp, ref):
    """k3 = e^x - x - 1 with x = log ref - log pi; zero with zero gradient iff equal; else the
    gradient has the sign of log pi - log ref, so that descending it closes the distance (until the
    cap 10)."""
    loss, gradient = one_token(logp, logp, 0.0, ref=ref, kl_coef=1.0)
    x = ref - logp
    k3 = math.exp(x) - x - 1
    assert loss == pytest.approx(min(k3, 10.0), rel=1e-9, abs=1e-12)
    assert loss >= 0
    if k3 < 9.999:
        assert gradient == pytest.approx(1 - math.exp(x), rel=1e-6, abs=1e-11)
    elif k3 > 10.001:
        assert gradient == 0


# ------------------------------------------------------------------------------- aggregation, packs


def test_the_three_aggregations_worked_by_hand():
    """On policy, losses 1 and 3 in one rollout and 8 in the other."""
    same = [[0.0, 0.0], [0.0]]
    batch = Tokens(same, same, same, [[-1.0, -3.0], [-8.0]])
    losses = {how: loss_and_gradient(batch, LossConfig(aggregate=how))[0] for how in AGGREGATIONS}
    assert losses == pytest.approx(
        {"seq-mean-token-mean": 5.0, "token-mean": 4.0, "seq-mean-token-sum": 6.0}
    )


@given(token_batches(max_rows=7), configs, st.integers(0, 2**32 - 1))
def test_packs_of_any_sizes_give_the_loss_and_the_gradient_of_the_whole_step(batch, config, seed):
    """Rollouts are shuffled and cut anywhere; the sums of losses, statistics and gradients are
    those of the step."""
    rng = random.Random(seed)
    counts = {"rollouts": len(batch.logp), "tokens": len(batch.tokens())}
    whole_loss, whole = loss_and_gradient(batch, config)
    of_rollout = whole.split([len(row) for row in batch.logp])
    order = rng.sample(range(len(batch.logp)), len(batch.logp))
    total_loss, policy_loss = 0.0, 0.0
    while order:
        n = rng.randint(1, len(order))
        chosen, order = order[:n], order[n:]
        part = Tokens(*([column[i] for i in chosen] for column in batch.columns()))
        loss, gradient = loss_and_gradient(part, config, **counts)
        expected = torch.cat([of_rollout[i] for i in chosen])
        assert torch.allclose(gradient, expected, rtol=1e-12, atol=1e-14)
        total_loss += loss
        policy_loss += loss_stats(*inputs_of(part, config, **counts))["policy_loss"]
    assert total_loss == pytest.approx(whole_loss, rel=1e-12, abs=1e-12)
    assert policy_loss == pytest.approx(loss_stats(*inputs_of(batch, config))["policy_loss"])


# --------------------------------------------------------------------------------- the number range

extremes = st.sampled_from((0.0, -1.0, 20.0, 90.0, 1e30, -1e30, 3e38, -3e38, -1e-30))
tokens_at_the_edge = st.tuples(
    extremes, extremes, extremes, st.sampled_from((0.0, 1.0, -1.0, 1e25, -1e25))
)


@given(st.lists(tokens_at_the_edge, min_size=1, max_size=4), configs)
def test_loss_gradient_and_statistics_are_finite_for_any_finite_float32_log_probs(tokens, config):
    """Differences of log-probs may overflow float32; advantages up to 1e25 leave room for the
    largest ratio, e^20."""
    batch = Tokens(*([list(column)] for column in zip(*tokens, strict=True)))
    inputs = inputs_of(batch, config, dtype=torch.float32)
    loss = igpo_loss(*inputs)
    loss.backward()
    assert loss.dtype == torch.float32 and math.isfinite(loss.item())
    assert torch.isfinite(inputs[0].grad).all()
    stats = loss_stats(*inputs)
    assert all(map(math.isfinite, stats.values())), stats


def test_the_ratio_is_cut_at_e_to_the_20():
    assert one_token(0.0, -1e30, -1.0) == (pytest.approx(math.exp(20.0)), 0.0)
