"""The update: GRPO is IGPO without gains, what has no signal costs nothing and changes nothing, divergence stops it in time."""

from dataclasses import replace

import pytest
import torch

from minvenus.config import Recipe
from minvenus.igpo.credit import credit
from minvenus.igpo.loss import AGGREGATIONS, k3
from minvenus.train import igpo
from minvenus.train.igpo import Trained, summary
from minvenus.train.optim import Diverged
from tests.train.igpo_runs import MIXED, credited_batch, rows_of, scripted_job, small_igpo, with_recipe, write_model
from tests.train.runs import gradients, parameters

FAILED = [["right: dog", "wrong: dog"], ["wrong: dog", "right: dog"]]
SEARCHES = [["search: right", "search: dog"], [": dog", "search: right"]]       # no visit, so no gain
GRPO = Recipe.paper(use_gain=False)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return small_igpo(write_model(tmp_path_factory.mktemp("model")))


def grads_of(job, rows, config=None) -> torch.Tensor:
    job.model.zero_grad()
    igpo.backward(job.model, rows, None, config or job.config)
    return gradients(job.model)


# ------------------------------------------------------------------------------------------------------------ GRPO and IGPO


def test_grpo_and_igpo_without_gains_give_the_same_update_to_the_last_bit(config):
    """Three epochs, so that ratios leave 1 and the optimiser has moments."""
    updated = []
    for use_gain in (True, False):
        job = scripted_job(with_recipe(replace(config, epochs=3), use_gain=use_gain), SEARCHES)
        batch, credited = credited_batch(job)
        assert [m.outcome for m in batch.measured] == [1.0, 0.0, 0.0, 1.0] and not any(g for row in credited.gains for g in row)
        assert job.update(batch, credited, 0)["updates"] == 3
        updated.append(parameters(job.model))
    assert torch.equal(*updated) and not torch.equal(updated[0], parameters(scripted_job(config, SEARCHES).model))


def test_grpo_undiscounted_is_the_textbook_formula(config):
    """(r - mean) / std on every token of a rollout: +1 for the right one of two, -1 for the other."""
    job = scripted_job(with_recipe(config, use_gain=False, gamma=1.0), SEARCHES)
    batch, credited = credited_batch(job)
    for m, own in zip(batch.measured, credited.record.advantages, strict=True):
        assert own == pytest.approx([1.0 if m.outcome else -1.0] * len(own), abs=1e-5)


def test_where_all_have_failed_grpo_gives_no_gradient_at_all_and_igpo_gives_one(config):
    job = scripted_job(config, FAILED)
    before = parameters(job.model).clone()
    batch, credited = credited_batch(job, GRPO)
    assert [m.outcome for m in batch.measured] == [0.0] * 4
    rows = rows_of(batch, credited)
    assert all(not row.advantages.any() for row in rows)
    assert job.update(batch, credited, 0) == {"updates": 0} and torch.equal(parameters(job.model), before)
    assert all(parameter.grad is None for parameter in job.model.parameters()) and not job.optimizer.state
    batch, credited = credited_batch(job)
    assert grads_of(job, rows_of(batch, credited)).norm() > 1e-3


def test_where_all_have_failed_grpo_with_a_kl_term_has_the_gradient_of_that_term_alone(config, tmp_path):
    """The reference is another model, or the term would have none either."""
    config = replace(config, kl_coef=0.1)
    job = scripted_job(config, FAILED)
    other = scripted_job(replace(config, model=write_model(tmp_path / "other", seed=4)), FAILED).model
    batch, credited = credited_batch(job, GRPO)
    rows = rows_of(batch, credited)
    ref = igpo.all_logprobs(other, rows, 1.0, config.pack_tokens)
    job.model.zero_grad()
    stats = igpo.backward(job.model, rows, ref, config)
    shipped = gradients(job.model)
    assert stats["policy_loss"] == 0.0 and stats["kl"] > 0.01
    job.model.zero_grad()
    new, _ = igpo.logprobs(job.model, rows, 1.0)
    (0.1 * sum(k3(logp, r).mean() for logp, r in zip(new, ref, strict=True)) / len(rows)).backward()
    assert (shipped - gradients(job.model)).norm() < 1e-5 * shipped.norm()


# ---------------------------------------------------------------------------------------------------------- without a signal


@pytest.mark.parametrize("aggregate", AGGREGATIONS)
def test_a_group_without_a_signal_does_not_run_and_still_counts_in_the_mean(config, aggregate, monkeypatch):
    config = replace(config, aggregate=aggregate)
    job = scripted_job(config, MIXED)
    batch, credited = credited_batch(job, GRPO)
    rows = rows_of(batch, credited)
    assert [row.signal for row in rows] == [True, True, False, False]
    job.model.zero_grad()
    stats = igpo.backward(job.model, rows, None, config)
    skipped = gradients(job.model)
    assert stats["tokens"] == len(rows[0].tokens) + len(rows[1].tokens)
    monkeypatch.setattr(Trained, "signal", True)
    job.model.zero_grad()
    whole = igpo.backward(job.model, rows, None, config)
    assert whole["tokens"] == sum(len(row.tokens) for row in rows)
    assert whole["loss"] == pytest.approx(stats["loss"], abs=1e-6) and whole["loss"] != 0.0
    assert (skipped - gradients(job.model)).norm() < 1e-5 * skipped.norm()


def test_a_mini_batch_without_a_signal_costs_no_optimiser_step(config):
    """Not even one on a gradient of zero: the moments of earlier steps would move the weights."""
    job = scripted_job(replace(config, minibatches=4), MIXED)
    batch, credited = credited_batch(job, GRPO)
    assert job.update(batch, credited, 0)["updates"] == 2
    assert {int(state["step"]) for state in job.optimizer.state.values()} == {2}
    moved = parameters(job.model).clone()
    batch, credited = credited_batch(scripted_job(config, FAILED), GRPO)
    assert job.update(batch, credited, 1) == {"updates": 0} and torch.equal(parameters(job.model), moved)


def test_a_batch_from_which_everything_was_dropped_is_no_update(config):
    job = scripted_job(config, MIXED)
    collected, logprobs = job.collect(job.questions(0), 0)
    batch = job.grade([replace(rollout, termination="error", error="down") for rollout in collected], logprobs)
    credited = credit(batch.measured, job.recipe)
    assert batch.dropped["failed"] == 4 and job.update(batch, credited, 0) == {"updates": 0}
    numbers = job.numbers(batch, credited)
    assert numbers["groups_without_any_signal"] == 1.0 and "outcome" not in numbers and "turns" not in numbers


def test_recomputation_changes_memory_and_no_number(config):
    updated = []
    for recompute in (False, True):
        job = scripted_job(replace(config, recompute=recompute), MIXED)
        assert job.model.model.recompute == recompute
        batch, credited = credited_batch(job)
        updated.append((job.update(batch, credited, 0), parameters(job.model)))
    assert updated[0][0] == updated[1][0] and torch.equal(updated[0][1], updated[1][1])


# ----------------------------------------------------------------------------------------------------------------- numbers


def test_the_numbers_of_several_optimiser_steps_are_means_extremes_and_the_gap_before_the_first():
    first = {"tokens": 10.0, "entropy": 1.0, "logprob_gap": 1e-6, "ratio_min": 1.0, "ratio_max": 1.0}
    second = {"tokens": 10.0, "entropy": 2.0, "logprob_gap": 0.5, "ratio_min": 0.75, "ratio_max": 1.5}
    assert summary([first, second]) == {"tokens": 20, "entropy": 1.5, "logprob_gap": 1e-6, "ratio_min": 0.75, "ratio_max": 1.5,
                                        "updates": 2}


def test_statistics_do_not_depend_on_how_rollouts_are_packed(config):
    job = scripted_job(replace(config, epochs=2), MIXED)
    batch, credited = credited_batch(job)
    rows = rows_of(batch, credited)
    job.update(batch, credited, 0)                                        # now ratios are not 1
    job.model.zero_grad()
    longest = max(len(row.tokens) for row in rows)
    together = igpo.backward(job.model, rows, None, config)
    apart = igpo.backward(job.model, rows, None, replace(config, max_context=longest, pack_tokens=longest))
    assert together.keys() == apart.keys() and together["ratio_max"] > 1.01
    for name in together:
        assert apart[name] == pytest.approx(together[name], rel=1e-4, abs=1e-6), name


# --------------------------------------------------------------------------------------------------------------- divergence


def spoilt(rows, **columns):
    return [replace(row, **{name: change(getattr(row, name)) for name, change in columns.items()}) for row in rows]


@pytest.mark.parametrize(("columns", "words"), [
    ({"advantages": lambda a: a * float("inf")}, "step 8: the loss is .*: look at the last lines of metrics.jsonl"),
    ({"old_logp": lambda x: x * float("nan")}, "step 8: the loss is nan"),
    ({"old_logp": lambda x: x - 0.5}, "step 8: new and stored log-probs differ by 0.5 before the first update, more than"),
    ({"advantages": lambda a: a * 1e38}, "step 8: the (loss|gradient's norm) is"),
])
def test_a_number_that_cannot_be_trained_on_stops_before_the_weights_move(config, columns, words):
    job = scripted_job(config, MIXED)
    before = parameters(job.model).clone()
    rows = spoilt(rows_of(*credited_batch(job)), **columns)
    with pytest.raises(Diverged, match=words) as stopped:
        igpo.update(job.model, job.optimizer, rows, None, job.config, 7)
    assert not stopped.value.moved and torch.equal(parameters(job.model), before) and "\n" not in str(stopped.value)


def test_later_in_the_step_it_says_that_the_weights_have_moved(config, monkeypatch):
    job = scripted_job(replace(config, epochs=2), MIXED)
    rows, real, calls = rows_of(*credited_batch(job)), igpo.igpo_loss, []

    def loss(*arguments, **options):
        calls.append(1)
        value, stats = real(*arguments, **options)
        return value * (float("nan") if len(calls) > 1 else 1.0), stats

    monkeypatch.setattr(igpo, "igpo_loss", loss)
    with pytest.raises(Diverged, match="the loss is nan") as stopped:
        igpo.update(job.model, job.optimizer, rows, None, job.config, 0)
    assert stopped.value.moved
