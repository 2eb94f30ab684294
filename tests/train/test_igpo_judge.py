"""A judge that fails never changes a reward: its rollout is dropped and counted, or the run stops.

Real servers on 127.0.0.1; the policy is scripted, so that the answers are known.
"""

import pytest

import train_igpo
from minvenus.evaluation import judge as judging
from minvenus.evaluation.judge import Judge
from minvenus.files import latest_checkpoint, read_jsonl
from minvenus.train import update as updating
from tests.evaluation.local_judge import QUICK, grading, planted  # noqa: F401
from tests.train.igpo_runs import first_step, script_runs, small_igpo, write_model
from tests.train.runs import command

pytestmark = pytest.mark.usefixtures("planted")

# Verdicts by the first word of the answer; the judge fails at "sphinx".
PLAYS = [["right: yes, a cat", "wrong: no, a dog", "right: yes, a hen", "wrong: sphinx"],
         ["right: no 1", "wrong: yes 1", "search: no 2", ": yes 2"]]


def broken(handler):
    handler.reply("down", status=500)


class QuickJudge(Judge):
    """One thread, so that verdicts come one after the other."""

    def __init__(self, path):
        super().__init__(path, threads=1, **QUICK)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judged")
    return small_igpo(write_model(folder / "model"), folder / "run", group=4, judge=True, steps=2)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for module in (train_igpo, judging):
        monkeypatch.setattr(module, "Judge", QuickJudge)


@pytest.mark.parametrize(("first", "kept"), [
    (PLAYS[0], [0, 1, 2, 4, 5, 6, 7]),
    (["right: yes, a cat", "wrong: sphinx", ": sphinx", "search: sphinx"], [4, 5, 6, 7]),
], ids=["one unknown", "one left"])
def test_a_verdict_that_does_not_come_drops_its_rollout_and_changes_no_other(first, kept, config, monkeypatch):
    """Neither as a wrong answer nor as a right one: the statistics are those of the others. One that is left alone in
    its group teaches nothing."""
    with grading(lambda answer: broken if answer == "sphinx" else answer.split()[0].strip(",")) as server:
        monkeypatch.setenv("JUDGE_BASE_URL", server.url)
        step = first_step(config, [first, PLAYS[1]])
    unknown = sum("sphinx" in play for play in first)
    assert step.batch.dropped == {"failed": 0, "judge_unknown": unknown, "alone": 8 - unknown - len(kept)}
    assert [m.outcome for m in step.batch.measured] == [[1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0][i] for i in kept]
    assert [m.logprobs for m in step.batch.measured] == [step.logprobs[i] for i in kept]
    assert step.update()["updates"] == 1


def test_a_judge_that_cannot_be_relied_on_stops_the_run_with_the_reason_and_a_checkpoint(config, tmp_path, monkeypatch,
                                                                                         capsys):
    """In the second step; then it is well again, and the run goes on."""
    config = small_igpo(config.model, tmp_path, group=4, judge=True, steps=2, save_every=100)
    answers = iter(range(1000))
    # other answers at every question, so that nothing comes from the cache; eight verdicts a step
    script_runs(monkeypatch, config, [[f"wrong: yes {next(answers)}" for _ in range(4)] for _ in range(2)])
    well = [True]
    with grading(lambda answer: "yes" if well[0] else broken) as server:
        monkeypatch.setenv("JUDGE_BASE_URL", server.url)
        update = updating.igpo_update

        def then_it_breaks(*arguments):
            well[0] = False
            return update(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(updating, "igpo_update", then_it_breaks)
            assert command("train_igpo.py", config) == 2
        err = capsys.readouterr().err
        assert "6 of the last 14 verdicts of the judge failed" in err and "status 500" in err and "Traceback" not in err
        assert (tmp_path / "latest").read_text() == "step-00000001\n"
        assert [row["step"] for row in read_jsonl(tmp_path / "metrics.jsonl")] == [1]
        well[0] = True
        assert command("train_igpo.py", config) == 0 and latest_checkpoint(tmp_path).name == "step-00000002"
    assert [row["judge_unknown"] for row in read_jsonl(tmp_path / "metrics.jsonl")] == [0, 0]
