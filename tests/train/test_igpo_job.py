"""The parts of a run: whom it asks, with how many turns, at which temperature, and how it grades."""

from contextlib import suppress
from dataclasses import replace

import pytest
import torch

import train_igpo
from minvenus.agent.protocol import final_answer
from minvenus.agent.rollout import RolloutLoop
from minvenus.engine.score_packed import score_packed
from minvenus.evaluation.answers import f1
from minvenus.igpo.gain import answer_logprobs, scored_lengths, wrap_answer
from minvenus.train import igpo
from minvenus.train.optim import optimiser_step
from tests.train.igpo_runs import MIXED, credited_batch, rows_of, scripted_job, small_igpo, write_model
from tests.train.runs import TINY


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return small_igpo(write_model(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize(("hops", "slack", "held_out"), [(1, 0, 3), (4, 2, 5), (None, 1, 8)])
def test_the_web_of_a_run_has_the_hops_turns_and_held_out_questions_of_its_settings(config, hops, slack, held_out):
    asked = train_igpo.Job(replace(config, hops=hops, slack=slack, evaluate_questions=held_out)).asked
    wanted = [1 + i % 4 if hops is None else hops for i in range(held_out)]
    assert [asked.max_turns(question) for question in asked.held_out] == [2 * n + 1 + slack for n in wanted]
    assert [asked.max_turns(question) for question in asked.training[:held_out]] == [2 * n + 1 + slack for n in wanted]
    assert not {q.text for q in asked.held_out} & {q.text for q in asked.training}


def what_is_asked(monkeypatch, call):
    """The policy of the loop that `call` makes, and the questions and limits of turns that it adds."""
    loops, added = [], []

    class Recorder(RolloutLoop):
        def add(self, question, *rest, max_turns, **options):
            added.append((question, max_turns))
            return []

    monkeypatch.setattr(train_igpo, "RolloutLoop", lambda *given, **named: loops.append(Recorder(*given, **named)) or loops[-1])
    with suppress(Exception):                      # nothing was rolled out, so nothing can be made of it
        call()
    return [question for question, _ in added], [turns for _, turns in added], loops[0].policy


def test_training_and_evaluation_ask_their_own_questions_with_their_own_turns_and_one_sampling(config, monkeypatch):
    job = train_igpo.Job(replace(config, hops=None, slack=3, evaluate_questions=4, top_p=0.9, temperature=0.7))
    evaluated, limits, policy = what_is_asked(monkeypatch, job.evaluation)
    assert evaluated == job.asked.held_out and limits == [6, 8, 10, 12]
    trained, limits, other = what_is_asked(monkeypatch, lambda: job.collect(job.questions(0), 0))
    assert trained == job.questions(0) and limits == [job.asked.max_turns(question) for question in trained]
    assert policy.sampling == other.sampling and (policy.sampling.top_p, policy.sampling.temperature) == (0.9, 0.7)


def test_only_ids_of_the_tokenizer_are_drawn_and_adam_is_the_papers(config):
    job = train_igpo.Job(config)
    assert job.engine.width == TINY.size < job.model.config.vocab_size
    assert [group["betas"] for group in job.optimizer.param_groups] == [(0.9, 0.999)]


@pytest.mark.parametrize("policy", ("current", "reference"))
def test_gains_and_kl_are_at_the_sampling_temperature(config, policy):
    """The script's stored log-probs are at temperature 1, so nothing is said about them here."""
    job = scripted_job(replace(config, temperature=0.7, gain_policy=policy, kl_coef=0.1, logprob_gap=100.0), MIXED)
    collected, measured = job.collect(job.questions(0), 0)
    for rollout, own in zip(collected, measured, strict=True):
        wrapped, lengths = wrap_answer(rollout.question.answers[0], TINY, job.recipe), scored_lengths(rollout, job.recipe)
        fresh = score_packed(job.model, rollout.tokens, lengths, [wrapped.ids] * len(lengths), 0.7)
        for a, b in zip(own, answer_logprobs(rollout, wrapped, fresh, job.recipe), strict=True):
            assert (a is None) == (b is None) and (a is None or a == pytest.approx(b, abs=1e-4))
    batch, credited = credited_batch(job)
    assert job.update(batch, credited, 0)["kl"] == pytest.approx(0.0, abs=1e-6)


def test_an_answer_that_is_half_right_is_graded_by_f1_where_that_is_asked(config):
    job = scripted_job(replace(config, outcome="f1"), [["right: pets own dog", "right: right"]] * 2)
    batch, _ = credited_batch(job)
    wanted = [f1(final_answer(rollout.turns), rollout.question.answers) for rollout in batch.rollouts]
    assert [m.outcome for m in batch.measured] == wanted and wanted[1::2] == [1.0, 1.0] and 0 < wanted[0] < 1


def test_the_losss_settings_are_the_runs(config, monkeypatch):
    job = scripted_job(config, MIXED)
    rows, seen, real = rows_of(*credited_batch(job)), [], igpo.igpo_loss

    def loss(*tensors, **options):
        seen.append(options)
        return real(*tensors, **options)

    monkeypatch.setattr(igpo, "igpo_loss", loss)
    own = {"clip_low": 0.11, "clip_high": 0.33, "dual_clip": 7.0, "aggregate": "token-mean"}
    igpo.backward(job.model, rows, None, replace(config, **own))
    assert seen and all(options.items() >= own.items() for options in seen)


def test_a_gradient_longer_than_the_clip_is_cut_to_it_and_a_shorter_one_is_not():
    for clip, length in ((1.0, 1.0), (5.0, 5.0), (50.0, 13.0)):
        model = torch.nn.Linear(2, 1, bias=False)
        before = model.weight.detach().clone()
        model.weight.grad = torch.tensor([[5.0, 12.0]])                            # of length 13
        assert optimiser_step(model, torch.optim.SGD(model.parameters(), lr=0.0), 0.1, clip) == pytest.approx(13.0)
        assert float((model.weight.detach() - before).norm()) == pytest.approx(0.1 * length, rel=1e-4)
