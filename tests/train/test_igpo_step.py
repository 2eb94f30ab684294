"""One IGPO step on a two-question toy batch, computed a second time by hand, from the model's
logits to one logit's gradient."""

import math
from dataclasses import replace

import pytest
import torch

from minvenus.igpo.gain import wrap_truth
from minvenus.train.checkpoint import load_reference, load_start
from minvenus.train.settings import IGPOConfig
from minvenus.train.update import backward
from tests.train.igpo_runs import first_step, small_igpo, write_model
from tests.train.runs import TINY, gradients

# of the first question one rollout is right, of the second none; the gains of all four visits
# differ
PLAYS = [["right: right", "wrong: dog"], ["right: dog", "wrong search: dog"]]
KINDS = [["search", "visit", "answer"]] * 3 + [["search", "visit", "search", "answer"]]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return first_step(small_igpo(write_model(tmp_path_factory.mktemp("model")), slack=1), PLAYS)


def belief(made, rollout, turn: int) -> float:
    """Mean log-prob of the truth's tokens before a turn, from a fresh forward over nothing but that
    context and the answer."""
    wrapped = wrap_truth(rollout.question.answers[0], TINY, made.config.recipe)
    context = rollout.tokens[: rollout.turns[turn].start]
    with torch.no_grad():
        logp = (
            made.model(torch.tensor([context + wrapped.ids]))[0].double().log_softmax(-1)
        )  # [L, V]
    return sum(
        logp[len(context) + j - 1, wrapped.ids[j]].item()
        for j in range(wrapped.start, len(wrapped.ids))
    ) / (len(wrapped.ids) - wrapped.start)


def z_scores(values: list[float]) -> list[float]:
    mu = sum(values) / len(values)
    sigma = math.sqrt(sum((v - mu) ** 2 for v in values) / len(values) + 1e-8)
    return [(v - mu) / (sigma + 1e-6) for v in values]


def advantages_by_hand(gains: list[float], outcomes: list[float], gamma=0.95) -> list[list[float]]:
    """Gains of the four visits. Each stands on its search too: two equal rewards a rollout, and in
    the last one a search behind the visit with none."""
    z_gain, z_outcome = [], []
    for a, b in ((0, 1), (2, 3)):
        z_gain += z_scores([gains[a], gains[a], gains[b], gains[b]])[::2]
        z_outcome += z_scores([outcomes[a], outcomes[b]])
    scale = min(max(sum(map(abs, z_outcome)) / 4, 0.3) / (sum(map(abs, z_gain)) / 4 + 1e-6), 10.0)
    advantages = []
    for i in range(4):
        row = [z_outcome[i]]
        for term in ([0.0] if i == 3 else []) + [scale * z_gain[i], scale * z_gain[i]]:
            row.insert(0, term + gamma * row[0])
        advantages.append(row)
    return advantages


def test_rewards_and_advantages_of_the_batch_are_those_worked_out_by_hand(made):
    batch, credited = made.batch, made.credit
    assert [[turn.kind for turn in rollout.turns] for rollout in batch.rollouts] == KINDS
    assert [m.outcome for m in batch.samples] == [1.0, 0.0, 0.0, 0.0]
    assert [m.group for m in batch.samples] == [0, 0, 1, 1]
    gains = [belief(made, rollout, 2) - belief(made, rollout, 0) for rollout in batch.rollouts]
    assert len({round(gain, 3) for gain in gains}) == 4, "a case worth computing"
    assert [row[1] for row in credited.gains] == pytest.approx(gains, abs=1e-5)
    assert [r.turns[:2] for r in credited.rewards] == [[gain[1]] * 2 for gain in credited.gains]
    assert credited.rewards[3].turns[2] is None
    for own, expected in zip(
        credited.advantages, advantages_by_hand(gains, [1.0, 0.0, 0.0, 0.0]), strict=True
    ):
        assert own == pytest.approx(expected, abs=2e-4)  # z-scores divide rounding by the spread


def loss_by_hand(made):
    """-1/B sum over rollouts of the mean over their sampled tokens of A log pi, whose gradient is
    the policy gradient; and the logits of every rollout [L, V]."""
    loss, logits = 0.0, []
    for rollout, advantages in zip(made.batch.rollouts, made.credit.advantages, strict=True):
        logits.append(made.model(torch.tensor([rollout.tokens]))[0])
        logits[-1].retain_grad()
        logp = logits[-1].log_softmax(-1)
        terms = []
        for turn, advantage in zip(rollout.turns, advantages, strict=True):
            sampled = [k for k in range(turn.start, turn.end) if rollout.sampled[k]]
            terms += [advantage * logp[k - 1, rollout.tokens[k]] for k in sampled]
        loss = loss - sum(terms) / len(terms) / len(made.rows)
    return loss, logits


def test_at_the_start_every_ratio_is_one_and_the_losss_gradient_is_the_policy_gradient(made):
    batch, credited = made.batch, made.credit
    made.model.zero_grad()
    stats = backward(made.model, made.rows, made.config)
    assert stats["ratio_min"] == pytest.approx(1.0, abs=1e-5) and stats[
        "ratio_max"
    ] == pytest.approx(1.0, abs=1e-5)
    assert stats["logprob_gap"] < 1e-5 and stats["clip_fraction"] == 0.0
    shipped = gradients(made.model)
    # the value of the loss, every ratio being 1: minus the mean over rollouts of the token mean of
    # A
    means = [
        sum(a * sum(r.sampled[t.start : t.end]) for t, a in zip(r.turns, row, strict=True))
        / sum(r.sampled)
        for r, row in zip(batch.rollouts, credited.advantages, strict=True)
    ]
    assert stats["policy_loss"] == pytest.approx(-sum(means) / 4, abs=1e-5) == stats["loss"]

    made.model.zero_grad()
    loss, logits = loss_by_hand(made)
    loss.backward()
    expected = gradients(made.model)
    assert expected.norm() > 1e-3 and (shipped - expected).norm() < 1e-5 * expected.norm()

    # One logit without autograd: d loss / d logit of the sampled token = -A (1 - p) / (tokens *
    # rollouts).
    # The right rollout's visit is made more probable, the wrong one's less.
    for i, sign in ((0, -1.0), (1, 1.0)):
        rollout, k = batch.rollouts[i], batch.rollouts[i].turns[1].start
        p = logits[i][k - 1].softmax(-1)[rollout.tokens[k]].item()
        wanted = -credited.advantages[i][1] * (1.0 - p) / sum(rollout.sampled) / 4
        assert (
            logits[i].grad[k - 1, rollout.tokens[k]].item() == pytest.approx(wanted, rel=1e-4)
            and wanted * sign > 0
        )


def test_a_rollout_that_fills_its_context_without_an_answer_does_not_escape_the_penalty(made):
    config = replace(made.config, max_context=400, slack=20)
    step = first_step(config, [["right: right", "search " * 9 + ": right"]] * 2)
    for answered, full in ((0, 1), (2, 3)):
        rollout = step.batch.rollouts[full]
        assert rollout.termination == "token_limit_no_answer" and len(rollout.tokens) <= 400
        outcomes = [step.credit.rewards[i].outcome for i in (answered, full)]
        assert outcomes == [1.0, -1.0] and step.credit.advantages[full][-1] < -0.9


# ----------------------------------------------------------- what a step samples, scores and grades


def test_the_reference_of_random_weights_has_those_of_the_start():
    config = IGPOConfig(model="tiny", seed=5, device="cpu")
    start, _ = load_start(config)
    reference = load_reference(config, start)
    assert reference is not start and reference.head_weight.equal(start.head_weight)
