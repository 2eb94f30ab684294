"""The update of IGPO: GRPO is IGPO without gains, no signal costs nothing and changes nothing,
divergence stops it in time."""

import math
from dataclasses import replace
from functools import partial
from itertools import chain

import pytest
import torch

from minvenus.igpo.loss import LossConfig, k3
from minvenus.train import update as updating
from minvenus.train.batch import step_stats
from minvenus.train.optim import Diverged, optimizer_step
from minvenus.train.update import backward, with_reference
from tests.igpo.strategies import AGGREGATIONS
from tests.train.igpo_runs import (
    MIXED,
    first_step,
    row_logprobs,
    small_igpo,
    with_gate,
    with_recipe,
    write_model,
)
from tests.train.runs import gradients, parameters

approx = partial(pytest.approx, rel=1e-4)
FAILED = [["right: dog", "wrong: dog"], ["wrong: dog", "right: dog"]]
SEARCHES = [["search: right", "search: dog"], [": dog", "search: right"]]  # no visit, so no gain


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return small_igpo(write_model(tmp_path_factory.mktemp("model")))


def grpo(config, plays, **changes):
    return first_step(with_recipe(replace(config, **changes), use_gain=False), plays)


def gradient_of(step, rows=None, config=None) -> tuple[torch.Tensor, dict]:
    """The gradient of a mini-batch and its numbers; the model keeps no gradient."""
    step.model.zero_grad()
    numbers = backward(step.model, step.rows if rows is None else rows, config or step.config)
    gradient = gradients(step.model)
    step.model.zero_grad()
    return gradient, numbers


# ------------------------------------------------------------------------------------ GRPO and IGPO


def test_grpo_and_igpo_without_gains_give_the_same_update_to_the_last_bit(config):
    """Three epochs, so that ratios leave 1 and the optimiser has moments."""
    updated = []
    for use_gain in (True, False):
        step = first_step(with_recipe(replace(config, epochs=3), use_gain=use_gain), SEARCHES)
        assert [sample.outcome for sample in step.batch.samples] == [1.0, 0.0, 0.0, 1.0]
        assert not any(gain for row in step.credit.gains for gain in row)
        before = parameters(step.model)
        assert step.update()["updates"] == 3
        updated.append(parameters(step.model))
    assert torch.equal(*updated) and not torch.equal(updated[0], before)


def test_where_all_have_failed_grpo_gives_no_gradient_at_all_and_igpo_gives_one(config):
    step = grpo(config, FAILED)
    before = parameters(step.model)
    assert [sample.outcome for sample in step.batch.samples] == [0.0] * 4
    assert not any(row.advantages.any() for row in step.rows)
    assert step.update() == {"updates": 0, "tokens": 0}
    assert torch.equal(parameters(step.model), before) and not step.optimizer.state
    assert all(parameter.grad is None for parameter in step.model.parameters())
    assert gradient_of(first_step(config, FAILED))[0].norm() > 1e-3


def test_where_all_have_failed_grpo_with_a_kl_term_has_the_gradient_of_that_term_alone(
    config, tmp_path
):
    """The reference is another model, or the term would have none either."""
    config = replace(config, loss=LossConfig(kl_coef=0.1))
    step = grpo(config, FAILED)
    other = first_step(replace(config, model=write_model(tmp_path / "other", seed=4)), FAILED).model
    rows = with_reference(step.rows, other, config)
    shipped, numbers = gradient_of(step, rows)
    assert numbers["policy_loss"] == 0.0 and numbers["kl"] > 0.01
    new = row_logprobs(step.model, rows)
    terms = [k3(logp, row.ref_logprobs).mean() for logp, row in zip(new, rows, strict=True)]
    (0.1 * sum(terms) / len(rows)).backward()
    assert (shipped - gradients(step.model)).norm() < 1e-5 * shipped.norm()
    assert step.update()["updates"] == 1, "so the mini-batch is not skipped"


# --------------------------------------------------------------------------------- without a signal


@pytest.mark.parametrize("aggregate", AGGREGATIONS)
def test_every_number_of_an_update_by_hand_where_two_of_four_rows_do_not_run(
    aggregate, config, monkeypatch
):
    """Ratios of 2, 1/2, 1.1 and 1 in turn. Means are over the tokens that ran, the loss counts all
    four rollouts."""
    with_gate(monkeypatch, 1.0)
    loss = LossConfig(kl_coef=0.0, clip_low=0.2, clip_high=0.3, dual_clip=1.5, aggregate=aggregate)
    step = grpo(config, MIXED, loss=loss)
    new = row_logprobs(step.model, step.rows)
    ratios = [[(2.0, 0.5, 1.1, 1.0)[k % 4] for k in range(len(row))] for row in new]
    step.rows = [
        replace(row, old_logprobs=logp.detach() - torch.tensor(ratio).log())
        for row, logp, ratio in zip(step.rows, new, ratios, strict=True)
    ]
    tokens = sum(map(len, ratios))
    policy_loss, ran, entropy = 0.0, [], 0.0
    for row, ratio in zip(step.rows[:2], ratios, strict=False):
        losses = []
        for r, a in zip(ratio, row.advantages.tolist(), strict=True):
            capped = -a * min(max(r, 0.8), 1.3)
            losses.append(min(max(-a * r, capped), -1.5 * a) if a < 0 else max(-a * r, capped))
            ran.append((r, a))
        weights = {
            "token-mean": 1 / tokens,
            "seq-mean-token-mean": 1 / len(losses) / 4,
            "seq-mean-token-sum": 1 / 4,
        }
        policy_loss += sum(losses) * weights[aggregate]
        p = step.model(row.example.tokens.long()[None])[0, :-1].detach().softmax(-1)
        entropy -= float((p * p.log()).sum(-1)[row.example.sampled[1:]].sum())
    clipped = [r > 1.3 if a > 0 else r < 0.8 for r, a in ran]
    gaps = [abs(math.log(r)) for r, _ in ran]
    norm = gradient_of(step)[0].norm()
    assert step.update() == {
        "updates": 1,
        "tokens": sum(len(row.example) for row in step.rows[:2]),
        "loss": approx(policy_loss),
        "policy_loss": approx(policy_loss),
        "entropy": approx(entropy / len(ran)),
        "clip_fraction": approx(sum(clipped) / len(ran)),
        "dual_clip_fraction": approx(sum(r > 1.5 and a < 0 for r, a in ran) / len(ran)),
        "approx_kl": approx(-sum(math.log(r) for r, _ in ran) / len(ran)),
        "ratio_min": approx(0.5),
        "ratio_max": approx(2.0),
        "logprob_gap": approx(math.log(2)),
        "logprob_gap_mean": approx(sum(gaps) / len(ran)),
        "grad_norm": approx(float(norm)),
    }


def test_a_mini_batch_without_a_signal_costs_no_optimiser_step(config):
    """Not even one on a gradient of zero: the moments of earlier steps would move the weights."""
    step = grpo(config, MIXED, minibatches=4)
    assert step.update()["updates"] == 2
    assert {int(state["step"]) for state in step.optimizer.state.values()} == {2}
    moved = parameters(step.model)
    assert step.update(grpo(config, FAILED).rows, step=2)["updates"] == 0
    assert step.update(rows=[], step=3) == {"updates": 0, "tokens": 0}, "all rollouts were dropped"
    assert torch.equal(parameters(step.model), moved)


# -------------------------------------------------------------------------- epochs and mini-batches


def watched_minibatches(step, monkeypatch) -> list[list[int]]:
    """The rows of each mini-batch that runs from now on, by their numbers."""
    running, real = [], updating.backward

    def watched(model, rows, *rest):
        running.append([next(i for i, row in enumerate(step.rows) if row is r) for r in rows])
        return real(model, rows, *rest)

    monkeypatch.setattr(updating, "backward", watched)
    return running


def test_every_step_and_every_epoch_has_an_order_of_its_own(config, monkeypatch):
    """Mini-batches of one rollout: the order in which they run."""
    with_gate(monkeypatch, 100.0)
    step = first_step(replace(config, minibatches=4, epochs=3), MIXED)
    running = watched_minibatches(step, monkeypatch)
    for number in range(1, 9):
        step.update(step=number)
    order = [row for [row] in running]
    epochs = [tuple(order[i : i + 4]) for i in range(0, len(order), 4)]
    assert len(epochs) == 24 and all(sorted(epoch) == [0, 1, 2, 3] for epoch in epochs)
    assert len({tuple(epochs[i : i + 3]) for i in range(0, 24, 3)}) == 8, "steps differ"
    assert len(set(epochs[:3])) > 1 and len(set(epochs)) > 10, "epochs differ"


@pytest.mark.parametrize(("rows", "minibatches"), [(5, 3), (7, 2), (4, 3)])
def test_rows_that_do_not_divide_into_mini_batches_are_all_trained_on_once(
    rows, minibatches, config, monkeypatch
):
    with_gate(monkeypatch, 100.0)
    step = first_step(replace(config, minibatches=minibatches), MIXED)
    step.rows = [replace(step.rows[i % 4]) for i in range(rows)]
    running = watched_minibatches(step, monkeypatch)
    numbers = step.update()
    sizes = sorted(map(len, running))
    assert sorted(chain(*running)) == list(range(rows)) and numbers["updates"] == minibatches
    assert numbers["tokens"] == sum(len(row.example) for row in step.rows)
    assert len(sizes) == minibatches and sizes[-1] - sizes[0] <= 1


# ------------------------------------------------------------------------------------------ numbers


def test_the_numbers_of_several_optimiser_steps_are_means_extremes_and_the_gaps_before_the_first():
    names = ("tokens", "entropy", "logprob_gap", "logprob_gap_mean", "ratio_min", "ratio_max")
    first = dict(zip(names, (10, 1.0, 1e-6, 1e-7, 1.0, 1.0), strict=True))
    second = dict(zip(names, (10, 2.0, 0.5, 0.25, 0.75, 1.5), strict=True))
    expected = dict(zip(names, (20, 1.5, 1e-6, 1e-7, 0.75, 1.5), strict=True))
    assert step_stats([first, second]) == expected | {"updates": 2}


def test_gradient_and_numbers_do_not_depend_on_how_rollouts_are_packed(config):
    step = first_step(replace(config, epochs=2), MIXED)
    step.update()  # now ratios are not 1
    longest = max(len(row.example) for row in step.rows)
    together, numbers = gradient_of(step)
    apart, others = gradient_of(
        step, config=replace(config, max_context=longest, pack_tokens=longest)
    )
    assert numbers["ratio_max"] > 1.01 and (together - apart).norm() < 1e-5 * together.norm()
    assert others == pytest.approx(numbers, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("clip", "length"), [(1.0, 1.0), (5.0, 5.0), (50.0, 13.0)])
def test_a_gradient_longer_than_the_clip_is_cut_to_it_and_a_shorter_one_is_not(clip, length):
    model = torch.nn.Linear(2, 1, bias=False)
    before = model.weight.detach().clone()
    model.weight.grad = torch.tensor([[5.0, 12.0]])  # of length 13
    norm = optimizer_step(model, torch.optim.SGD(model.parameters(), lr=0.0), 0.1, clip)
    assert norm == pytest.approx(13.0)
    assert float((model.weight.detach() - before).norm()) == pytest.approx(0.1 * length, rel=1e-4)


# --------------------------------------------------------------------------------------- divergence


@pytest.mark.parametrize(
    ("column", "factor", "words"),
    [
        ("advantages", float("inf"), "the loss is .*: look at the last lines of metrics.jsonl"),
        ("old_logprobs", float("nan"), "the loss is nan"),
        ("advantages", 1e38, "the (loss|gradient's norm) is"),
    ],
)
def test_a_number_that_cannot_be_trained_on_stops_before_the_weights_move(
    config, column, factor, words
):
    step = first_step(config, MIXED)
    before = parameters(step.model)
    spoilt = [replace(row, **{column: getattr(row, column) * factor}) for row in step.rows]
    with pytest.raises(Diverged, match=words) as stopped:
        step.update(spoilt, step=7)
    assert torch.equal(parameters(step.model), before) and "\n" not in str(stopped.value)
