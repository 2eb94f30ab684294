"""A judge that fails, is slow or talks nonsense never changes a reward: its rollout is dropped and counted, or the run stops.

Real servers on 127.0.0.1; the policy is scripted, so that the answers are known.
"""

from functools import partial

import pytest

import train_igpo
from minvenus.evaluation import judge as judging
from minvenus.evaluation.judge import Judge
from minvenus.files import latest_checkpoint
from minvenus.igpo.credit import credit
from minvenus.train import metrics
from tests.evaluation.local_judge import QUICK, chat, drip, grading, planted  # noqa: F401
from tests.train.igpo_runs import command, credited_batch, script_runs, scripted_job, small_igpo, write_model

pytestmark = pytest.mark.usefixtures("planted")

# The first three answers get a verdict by their first word, the last one whatever the judge makes of "sphinx".
PLAYS = [["right: yes, a cat", "wrong: no, a dog", "right: yes, a hen", "wrong: sphinx"],
         ["right: no 1", "wrong: yes 1", "search: no 2", ": yes 2"]]
BROKEN = {
    "error": lambda handler: handler.reply("down", status=500),
    "too slow": drip,
    "nonsense": lambda handler: handler.reply(chat("I would rather not say. correct: yes/no")),
    "cut off": lambda handler: handler.reply("{", Content_Length="100"),
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judged")
    return small_igpo(write_model(folder / "model"), folder / "run", group=4, judge=True, steps=2)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(train_igpo, "Judge", partial(Judge, **QUICK))
    monkeypatch.setattr(judging, "Judge", partial(Judge, **QUICK))


def by_first_word(broken):
    return lambda answer: broken if answer == "sphinx" else answer.split()[0].strip(",")


def judged(config, tmp_path, monkeypatch, broken, plays=PLAYS):
    """(job, batch, log-probs of all rollouts) of a step; the cache of verdicts is the test's own."""
    with grading(by_first_word(broken)) as server:
        monkeypatch.setenv("JUDGE_BASE_URL", server.url)
        job = scripted_job(small_igpo(config.model, tmp_path, group=4, judge=True), plays)
        collected, logprobs = job.collect(job.questions(0), 0)
        return job, job.grade(collected, logprobs), logprobs


@pytest.mark.parametrize("how", BROKEN)
def test_a_verdict_that_does_not_come_drops_its_rollout_and_changes_no_other(how, config, tmp_path, monkeypatch):
    """Neither as a wrong answer nor as a right one: the statistics are those of the other seven."""
    job, batch, logprobs = judged(config, tmp_path, monkeypatch, BROKEN[how])
    assert batch.dropped == {"failed": 0, "judge_unknown": 1, "alone": 0} and len(batch.rollouts) == 7
    assert [m.outcome for m in batch.measured] == [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0] and (tmp_path / "judge.sqlite").exists()
    assert [m.logprobs for m in batch.measured] == [logprobs[i] for i in (0, 1, 2, 4, 5, 6, 7)]
    credited = credit(batch.measured, job.recipe)
    numbers = job.numbers(batch, credited)
    assert numbers["judge_unknown"] == 1 and numbers["outcome"] == 4 / 7
    assert credited.record.groups[0].outcome_count == 3 and credited.record.groups[0].outcome_mean == pytest.approx(2 / 3)
    assert job.update(batch, credited, 0)["updates"] == 1


def test_a_group_with_one_verdict_left_teaches_nothing(config, tmp_path, monkeypatch):
    plays = [["right: yes, a cat", "wrong: sphinx", ": sphinx", "search: sphinx"], PLAYS[1]]
    job, batch, _ = judged(config, tmp_path, monkeypatch, BROKEN["nonsense"], plays)
    assert batch.dropped == {"failed": 0, "judge_unknown": 3, "alone": 1} and {m.group for m in batch.measured} == {1}
    assert job.numbers(batch, credit(batch.measured, job.recipe))["groups_without_any_signal"] == 0.5


def test_a_judge_that_cannot_be_relied_on_stops_the_run_with_the_reason_and_a_checkpoint(config, tmp_path, monkeypatch, capsys):
    """In the second step; then it is well again, and the run goes on."""
    config = small_igpo(config.model, tmp_path, group=4, judge=True, steps=2, save_every=100)
    answers = iter(range(1000))
    # other answers at every question, so that nothing comes from the cache; eight verdicts a step
    script_runs(monkeypatch, config, [[f"wrong: yes {next(answers)}" for _ in range(4)] for _ in range(2)])
    well = [True]
    with grading(lambda answer: "yes" if well[0] else BROKEN["error"]) as server:
        monkeypatch.setenv("JUDGE_BASE_URL", server.url)
        update = train_igpo.igpo.update

        def then_it_breaks(*arguments):
            well[0] = False
            return update(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(train_igpo.igpo, "update", then_it_breaks)
            assert command(config) == 2
        err = capsys.readouterr().err
        assert "6 of the last 14 verdicts of the judge failed" in err and "status 500" in err and "Traceback" not in err
        assert (tmp_path / "latest").read_text() == "step-00000001\n"
        assert [row["step"] for row in metrics.read(tmp_path / "metrics.jsonl")] == [1]
        well[0] = True
        assert command(config) == 0 and latest_checkpoint(tmp_path).name == "step-00000002"
    assert [row["judge_unknown"] for row in metrics.read(tmp_path / "metrics.jsonl")] == [0, 0]


def test_verdicts_are_kept_so_that_a_step_that_is_done_again_has_the_same_outcomes(config, tmp_path, monkeypatch):
    with grading(by_first_word("no")) as server:
        monkeypatch.setenv("JUDGE_BASE_URL", server.url)
        batches = []
        for _ in range(2):
            job = scripted_job(small_igpo(config.model, tmp_path, group=4, judge=True), PLAYS)
            batches.append(credited_batch(job)[0].measured)
        assert batches[0] == batches[1] and len(server.seen) == 8
