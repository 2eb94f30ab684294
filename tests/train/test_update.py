"""The update of IGPO: GRPO is IGPO without gains, no signal costs nothing and changes nothing, divergence stops it in
time."""

from dataclasses import replace

import pytest
import torch

from minvenus.igpo.loss import LossConfig, k3
from minvenus.train import update as updating
from minvenus.train.optim import Diverged, optimizer_step
from minvenus.train.update import Row, backward, packed_logprobs, summary, with_reference
from tests.igpo.strategies import AGGREGATIONS
from tests.train.igpo_runs import MIXED, first_step, small_igpo, with_recipe, write_model
from tests.train.runs import gradients, parameters

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
    found = gradients(step.model)
    step.model.zero_grad()
    return found, numbers


# ------------------------------------------------------------------------------------------------------ GRPO and IGPO


def test_grpo_and_igpo_without_gains_give_the_same_update_to_the_last_bit(config):
    """Three epochs, so that ratios leave 1 and the optimiser has moments."""
    updated = []
    for use_gain in (True, False):
        step = first_step(with_recipe(replace(config, epochs=3), use_gain=use_gain), SEARCHES)
        assert [m.outcome for m in step.batch.samples] == [1.0, 0.0, 0.0, 1.0]
        assert not any(gain for row in step.credited.gains for gain in row)
        before = parameters(step.model)
        assert step.update()["updates"] == 3
        updated.append(parameters(step.model))
    assert torch.equal(*updated) and not torch.equal(updated[0], before)


def test_where_all_have_failed_grpo_gives_no_gradient_at_all_and_igpo_gives_one(config):
    step = grpo(config, FAILED)
    before = parameters(step.model)
    assert [m.outcome for m in step.batch.samples] == [0.0] * 4 and not any(
        row.advantages.any() for row in step.rows
    )
    assert step.update() == {"updates": 0, "tokens": 0} and torch.equal(
        parameters(step.model), before
    )
    assert (
        all(parameter.grad is None for parameter in step.model.parameters())
        and not step.optimizer.state
    )
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
    new, _ = packed_logprobs(step.model, step.rows, 1.0)
    (
        0.1
        * sum(k3(logp, row.ref_logp).mean() for logp, row in zip(new, rows, strict=True))
        / len(rows)
    ).backward()
    assert (shipped - gradients(step.model)).norm() < 1e-5 * shipped.norm()
    assert step.update()["updates"] == 1, "so the mini-batch is not skipped"


# --------------------------------------------------------------------------------------------------- without a signal


@pytest.mark.parametrize("aggregate", AGGREGATIONS)
def test_a_group_without_a_signal_does_not_run_and_still_counts_in_the_mean(
    config, aggregate, monkeypatch
):
    step = grpo(config, MIXED, loss=replace(config.loss, aggregate=aggregate))
    assert [row.has_signal for row in step.rows] == [True, True, False, False]
    skipped, some = gradient_of(step)
    monkeypatch.setattr(Row, "has_signal", True)
    whole, every = gradient_of(step)
    assert some["tokens"] == sum(len(row.tokens) for row in step.rows[:2]) < every["tokens"]
    assert every["loss"] == pytest.approx(some["loss"], abs=1e-6) and every["loss"] != 0.0
    assert (skipped - whole).norm() < 1e-5 * skipped.norm()


def test_a_mini_batch_without_a_signal_costs_no_optimiser_step(config):
    """Not even one on a gradient of zero: the moments of earlier steps would move the weights."""
    step = grpo(config, MIXED, minibatches=4)
    assert step.update()["updates"] == 2
    assert {int(state["step"]) for state in step.optimizer.state.values()} == {2}
    moved = parameters(step.model)
    assert step.update(grpo(config, FAILED).rows, step=2)["updates"] == 0
    assert step.update(rows=[], step=3) == {"updates": 0, "tokens": 0}, "all rollouts were dropped"
    assert torch.equal(parameters(step.model), moved)


# ------------------------------------------------------------------------------------------------------------ numbers


def test_the_numbers_of_several_optimiser_steps_are_means_extremes_and_the_gaps_before_the_first():
    first = {
        "tokens": 10,
        "entropy": 1.0,
        "logprob_gap": 1e-6,
        "logprob_gap_mean": 1e-7,
        "ratio_min": 1.0,
        "ratio_max": 1.0,
    }
    second = {
        "tokens": 10,
        "entropy": 2.0,
        "logprob_gap": 0.5,
        "logprob_gap_mean": 0.25,
        "ratio_min": 0.75,
        "ratio_max": 1.5,
    }
    assert summary([first, second]) == {
        "tokens": 20,
        "entropy": 1.5,
        "logprob_gap": 1e-6,
        "logprob_gap_mean": 1e-7,
        "ratio_min": 0.75,
        "ratio_max": 1.5,
        "updates": 2,
    }


def test_gradient_and_numbers_do_not_depend_on_how_rollouts_are_packed(config):
    step = first_step(replace(config, epochs=2), MIXED)
    step.update()  # now ratios are not 1
    longest = max(len(row.tokens) for row in step.rows)
    together, numbers = gradient_of(step)
    apart, others = gradient_of(
        step, config=replace(config, max_context=longest, pack_tokens=longest)
    )
    assert numbers["ratio_max"] > 1.01 and (together - apart).norm() < 1e-5 * together.norm()
    assert others == pytest.approx(numbers, rel=1e-4, abs=1e-6)


def test_every_step_and_every_epoch_has_an_order_of_its_own(config, monkeypatch):
    """Mini-batches of one rollout: the order in which they run."""
    step = first_step(replace(config, minibatches=4, epochs=3, logprob_gap=100.0), MIXED)
    running = []

    def watched(model, rows, *rest):
        running.append(next(i for i, row in enumerate(step.rows) if row is rows[0]))
        return backward(model, rows, *rest)

    monkeypatch.setattr(updating, "backward", watched)
    for number in range(1, 9):
        step.update(step=number)
    epochs = [tuple(running[i : i + 4]) for i in range(0, len(running), 4)]
    assert len(epochs) == 24 and all(sorted(epoch) == [0, 1, 2, 3] for epoch in epochs)
    assert len({tuple(epochs[i : i + 3]) for i in range(0, 24, 3)}) == 8, "steps differ"
    assert len(set(epochs[:3])) > 1 and len(set(epochs)) > 10, "epochs differ"


def test_the_settings_of_the_loss_are_those_of_the_run(config, monkeypatch):
    step, seen, real = first_step(config, MIXED), [], updating.igpo_loss

    def loss(*arguments):
        seen.append(arguments[-1])
        return real(*arguments)

    monkeypatch.setattr(updating, "igpo_loss", loss)
    settings = LossConfig(clip_low=0.11, kl_coef=0.0, aggregate="token-mean")
    backward(step.model, step.rows, replace(config, loss=settings))
    assert seen and all(each is settings for each in seen)


@pytest.mark.parametrize(("clip", "length"), [(1.0, 1.0), (5.0, 5.0), (50.0, 13.0)])
def test_a_gradient_longer_than_the_clip_is_cut_to_it_and_a_shorter_one_is_not(clip, length):
    model = torch.nn.Linear(2, 1, bias=False)
    before = model.weight.detach().clone()
    model.weight.grad = torch.tensor([[5.0, 12.0]])  # of length 13
    assert optimizer_step(
        model, torch.optim.SGD(model.parameters(), lr=0.0), 0.1, clip
    ) == pytest.approx(13.0)
    assert float((model.weight.detach() - before).norm()) == pytest.approx(0.1 * length, rel=1e-4)


# --------------------------------------------------------------------------------------------------------- divergence


@pytest.mark.parametrize(
    ("column", "change", "words"),
    [
        (
            "advantages",
            lambda a: a * float("inf"),
            "the loss is .*: look at the last lines of metrics.jsonl",
        ),
        ("old_logp", lambda x: x * float("nan"), "the loss is nan"),
        ("advantages", lambda a: a * 1e38, "the (loss|gradient's norm) is"),
    ],
)
def test_a_number_that_cannot_be_trained_on_stops_before_the_weights_move(
    config, column, change, words
):
    step = first_step(config, MIXED)
    before = parameters(step.model)
    spoilt = [replace(row, **{column: change(getattr(row, column))}) for row in step.rows]
    with pytest.raises(Diverged, match=words) as stopped:
        step.update(spoilt, step=7)
    assert torch.equal(parameters(step.model), before) and "\n" not in str(stopped.value)
