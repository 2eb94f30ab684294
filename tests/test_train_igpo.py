"""train_igpo.py as its users meet it: what it writes and says, how it stops and goes on, and how it
refuses.

Most runs follow a script (tests/train/igpo_runs.py): a random model writes nothing that could be
rewarded."""

import signal
from dataclasses import replace

import pytest

import train_igpo
from minvenus import setup
from minvenus.evaluation.judge import Judge
from minvenus.files import latest_checkpoint, read_jsonl
from minvenus.igpo.loss import LossConfig
from minvenus.model import weights
from minvenus.report.saved import load_batch, path_of
from minvenus.train.settings import IGPOConfig
from tests.agent import scripted as agent
from tests.evaluation.local_judge import QUICK, grading, planted  # noqa: F401
from tests.train.igpo_runs import (
    MIXED,
    first_step,
    scored_again,
    script_runs,
    small_igpo,
    write_model,
)
from tests.train.runs import command, content, signalled, unexplained_metrics

# Verdicts by the first word of the answer; the judge fails at "sphinx".
JUDGED = [
    ["right: yes, a cat", "wrong: no, a dog", "right: yes, a hen", "wrong: sphinx"],
    ["right: no 1", "wrong: yes 1", "search: no 2", ": yes 2"],
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def config(model):
    return small_igpo(model, kl_coef=0.001, evaluate_every=2, rollouts_every=2)


@pytest.fixture
def scripted(config, monkeypatch):
    script_runs(monkeypatch, config, MIXED)


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """A scripted run of three steps that was never stopped: its folder."""
    run = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        script_runs(patch, config, MIXED)
        train_igpo.main(replace(config, out=str(run)))
    return run


# --------------------------------------------------------------------------------- a run as a whole


def test_a_run_writes_a_model_that_loads_and_the_health_of_every_step(whole):
    """What is logged in which order is in test_wiring.py."""
    weights.load(latest_checkpoint(whole) / "model")
    rows, timing = (read_jsonl(whole / name) for name in ("metrics.jsonl", "timing.jsonl"))
    assert [row["step"] for row in rows] == [row["step"] for row in timing] == [1, 2, 3]
    for row, clock in zip(rows, timing, strict=True):
        assert not any("second" in name for name in row), "clocks differ from run to run"
        assert 0 < clock["scoring_seconds"] < clock["rollout_seconds"] < clock["seconds"]
        assert clock["update_seconds"] + clock["rollout_seconds"] < clock["seconds"]
        assert row["logprob_gap"] < 1e-5, "in every step: the engine has the trainer's weights"
        assert row["ratio_min"] == pytest.approx(1, abs=1e-5) == row["ratio_max"]
    assert [row["kl"] > 0 for row in rows] == [False, True, True], "it leaves the start checkpoint"
    assert not unexplained_metrics(whole), "docs/metrics.md explains every number"


def test_sampled_runs_are_the_same_bytes_for_one_seed_and_others_for_another(model, tmp_path):
    """With the engine's own draws."""
    config = small_igpo(model, steps=2, kl_coef=0.1, max_turn_tokens=12, max_context=192)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train_igpo.main(replace(config, out=str(tmp_path / name), seed=seed))
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert read_jsonl(tmp_path / "a" / "metrics.jsonl") != read_jsonl(tmp_path / "c/metrics.jsonl")


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_the_frozen_model_is_the_start_checkpoint_also_after_the_run_goes_on(
    lora_rank, config, scripted, tmp_path, monkeypatch
):
    """Stopped after the first update. What the gains were made of in the second step is what the
    start checkpoint says."""
    config = replace(
        config,
        gain_policy="reference",
        rollouts_every=1,
        learning_rate=0.05,
        out=str(tmp_path),
        steps=2,
        lora_rank=lora_rank,
        loss=LossConfig(kl_coef=0.0),  # the reference is there for the gains alone
    )
    with monkeypatch.context() as patch:
        signalled(patch, train_igpo, "igpo_update", [signal.SIGTERM])
        train_igpo.main(config)
    assert (tmp_path / "latest").read_text() == "step-00000001\n"
    train_igpo.main(config)
    start = weights.load(config.model)
    current = weights.load(
        tmp_path / "checkpoints" / "step-00000001" / "model"
    )  # the policy of the second step
    batch = load_batch(path_of(tmp_path, 2))
    assert batch.gain_policy == "reference"
    for sample in batch.samples:
        for model, same in ((start, True), (current, False)):
            gap = abs(
                scored_again(model, sample.rollout, batch.recipe)[0][0]
                - sample.truth_logprobs[0][0]
            )
            assert (gap < 1e-5) == same


class QuickJudge(Judge):
    """One request after the other, without patience."""

    def __init__(self, kind, folder):
        super().__init__(folder / "judge.sqlite", threads=1, **QUICK)


def failing(handler):
    handler.reply("down", status=500)


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize(
    ("first", "kept"),
    [
        (JUDGED[0], [0, 1, 2, 4, 5, 6, 7]),
        (["right: yes, a cat", "wrong: sphinx", ": sphinx", "search: sphinx"], [4, 5, 6, 7]),
    ],
    ids=["one unknown", "one left"],
)
def test_a_verdict_that_does_not_come_drops_its_rollout_and_changes_no_other(
    first, kept, model, monkeypatch
):
    """Neither as a wrong answer nor as a right one: the statistics are those of the others. One
    that is left alone in its group teaches nothing."""
    monkeypatch.setattr(setup, "make_grader", QuickJudge)
    with grading(
        lambda answer: failing if answer == "sphinx" else answer.split()[0].strip(",")
    ) as server:
        monkeypatch.setenv("JUDGE_BASE_URL", server.url)
        step = first_step(small_igpo(model, group=4, judge=True), [first, JUDGED[1]])
    unknown = sum("sphinx" in play for play in first)
    assert step.batch.dropped == {
        "failed": 0,
        "judge_unknown": unknown,
        "alone": 8 - unknown - len(kept),
    }
    assert [m.outcome for m in step.batch.samples] == [
        [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0][i] for i in kept
    ]
    assert [m.truth_logprobs for m in step.batch.samples] == [
        step.samples[i].truth_logprobs for i in kept
    ]
    assert step.update()["updates"] == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--group", "1"], "group must be a whole number of at least 2"),
        (["--judge"], "JUDGE_BASE_URL"),
        (["--max-context", "40"], "max_context must be at least"),
        (["--device", "cuda"], "torch sees no GPU here"),
        (["--pages", "3"], "lower it, or raise the number of pages"),
        (["--use-gains"], "unknown flag --use-gains, did you mean --use-gain?"),
    ],
)
def test_a_wrong_command_line_is_one_message_and_exit_code_2(
    flags, words, config, tmp_path, capsys, monkeypatch
):
    for name in ("JUDGE_BASE_URL", "JUDGE_MODEL", "JUDGE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert command("train_igpo.py", replace(config, out=str(tmp_path)), *flags) == 2
    err = capsys.readouterr().err
    assert words in err and "Traceback" not in err and not (tmp_path / "latest").exists()


def test_a_rollout_that_is_cut_before_its_last_turn_begins_is_scored_whole():
    """Its time is over when the result of its visit is there."""
    writer = agent.policy_for([agent.visit(), agent.answer()])
    config = IGPOConfig(device="cpu")

    def late(*_):
        episode.started -= 1000.0
        return "Bob has a cat."

    with agent.loop_for(writer, agent.budget(3, time_limit=1000.0)) as loop:
        [episode] = loop.add(agent.QUESTION, lambda question: agent.Tools(visit=late))
        for episodes in loop.run():
            [sample] = train_igpo.score_truth(writer.engine, episodes, agent.TOKENIZER, config)
    assert sample.rollout.termination == "timeout" and len(sample.rollout.turns) == 2
    assert all(sample.truth_logprobs), "before the visit and after it"
