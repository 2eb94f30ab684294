"""A run in its folder: what a resumed run may change, its two files, how it ends, and what an error
keeps."""

import errno
import json
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import train_igpo
import train_sft
from minvenus.config import ConfigError
from minvenus.files import claimed, latest_checkpoint, read_jsonl
from minvenus.igpo.loss import LossConfig
from minvenus.igpo.recipes import Recipe
from minvenus.model.qwen3 import Qwen3
from minvenus.train import checkpoint
from minvenus.train.optim import Diverged, adamw
from minvenus.train.run import cut_back, open_run
from tests.train import runs
from tests.train.igpo_runs import MIXED, script_runs, small_igpo, write_model
from tests.train.runs import SMALL, TINY, content, made_up_run, small_config, write_inputs

MAIN = {"sft": train_sft.main, "igpo": train_igpo.main}
# Every setting of the two scripts with another value of it. A resumed run may change these: they
# decide memory,
# speed and what is looked at ...
MAY_CHANGE = {
    "sft": {
        "device": "auto",
        "pack_tokens": 999,
        "recompute": True,
        "offload": False,
        "evaluate_every": 7,
        "save_every": 7,
        "plan": True,
    },
    "igpo": {
        "device": "auto",
        "pack_tokens": 999,
        "recompute": True,
        "offload": False,
        "evaluate_every": 7,
        "save_every": 7,
        "plan": True,
        "pages": 999,
        "tool_seconds": 9.0,
        "rollouts_every": 7,
        "steps": 2,
    },
}
# ... and not these: they decide what is learned. A dictionary changes other settings with it.
ON_A_FILE = {"data": "questions.jsonl", "tools": "folder:.", "hops": 4}
MAY_NOT = {
    "sft": {
        "preset": "dr-venus-4b",
        "like": "minvenus",
        "lora_rank": 2,
        "data": "toyweb",
        "model": "tiny",
        "seed": 1,
        "steps": 4,
        "batch": 2,
        "max_tokens": 300,
        "reduction": "trajectory-mean",
        "learning_rate": 1.0,
        "warmup": 0.5,
        "weight_decay": 0.5,
        "clip": 0.5,
        "validation": 1,
        "demonstrations": 7,
        "most_hops": 5,
        "replay": 0.5,
        "wrong_result": 0.25,
    },
    "igpo": {
        "preset": "dr-venus-4b",
        "like": "minvenus",
        "lora_rank": 2,
        "data": ON_A_FILE,
        "tools": ON_A_FILE,
        "model": "tiny",
        "system_prompt": __file__,
        "seed": 1,
        "question_seed": 1,
        "recipe": Recipe(gamma=0.5),
        "gain_policy": "reference",
        "questions": 3,
        "group": 3,
        "epochs": 2,
        "minibatches": 2,
        "learning_rate": 1.0,
        "weight_decay": 0.5,
        "clip": 0.5,
        "loss": LossConfig(clip_low=0.1),
        "outcome": "f1",
        "judge": True,
        "temperature": 0.5,
        "top_p": 0.5,
        "max_turns": 9,
        "max_turn_tokens": 9,
        "max_context": 400,
        "max_observation_tokens": 99,
        "hops": 2,
        "slack": 1,
        "evaluate_questions": 1,
    },
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The settings of a finished run of each script, of one step."""
    folder = tmp_path_factory.mktemp("finished")
    configs = {
        "sft": small_config(write_inputs(folder), folder / "sft", steps=1),
        "igpo": small_igpo(write_model(folder / "model"), folder / "igpo", steps=1),
    }
    with pytest.MonkeyPatch.context() as patch:
        script_runs(patch, configs["igpo"], MIXED)
        for script, config in configs.items():
            MAIN[script](config)
    return configs


@pytest.fixture
def no_model(monkeypatch):
    """A large model takes minutes to load: a refusal comes before it."""
    for script in (train_sft, train_igpo):
        monkeypatch.setattr(script, "load_start", lambda config: pytest.fail("a model is loaded"))


# ------------------------------------------------------------------------ settings of a resumed run


@pytest.mark.parametrize("script", MAIN)
def test_every_setting_is_in_one_of_the_two_lists(script, finished):
    listed = ["out", *MAY_CHANGE[script], *MAY_NOT[script]]
    assert sorted(field.name for field in fields(finished[script])) == sorted(listed)


@pytest.mark.parametrize(
    ("script", "name"), [(script, name) for script in MAY_NOT for name in MAY_NOT[script]]
)
def test_a_setting_that_changes_what_is_learned_is_refused(script, name, finished, no_model):
    value = MAY_NOT[script][name]
    shown = {"recipe": "gamma", "loss": "clip_low"}.get(name, name)  # fields one by one
    with pytest.raises(ConfigError, match=rf"other settings: (.*; )?{shown} was "):
        MAIN[script](
            replace(finished[script], **(value if isinstance(value, dict) else {name: value}))
        )


def test_a_disk_without_locks_is_not_taken_for_another_process(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fcntl.flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    )
    with pytest.raises(OSError, match="No locks available"), claimed(tmp_path, "training"):
        pass


@pytest.mark.parametrize(
    ("script", "name"), [(script, name) for script in MAY_CHANGE for name in MAY_CHANGE[script]]
)
def test_a_run_goes_on_with_other_memory_speed_and_cadence_and_run_json_holds_them(
    script, name, finished, monkeypatch
):
    config = replace(finished[script], **{name: MAY_CHANGE[script][name]})
    script_runs(monkeypatch, finished["igpo"], MIXED)
    MAIN[script](config)
    saved = json.loads((Path(config.out) / "run.json").read_text())
    assert saved[name] == MAY_CHANGE[script][name]
    assert script == "sft" or saved["recipe"]["lead_in"] == "Answer.", "the one that is used"


def test_igpo_with_more_steps_learns_what_a_longer_run_learns(finished, tmp_path, monkeypatch):
    config = finished["igpo"]
    script_runs(monkeypatch, config, MIXED)
    for steps in (1, 2):
        train_igpo.main(
            replace(config, steps=steps, out=str(tmp_path / "extended"), pack_tokens=512 * steps)
        )
    train_igpo.main(replace(config, steps=2, out=str(tmp_path / "whole"), pack_tokens=1024))
    extended, whole = (
        read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("extended", "whole")
    )
    assert extended[1] == pytest.approx(whole[1], rel=1e-3, abs=1e-5) and len(extended) == 2
    with pytest.raises(
        ConfigError, match="step-00000002 is after step 2, --steps is 1: give as many or more"
    ):
        train_igpo.main(replace(config, steps=1, out=str(tmp_path / "whole")))


# ---------------------------------------------------------------------- a run with a made-up update


@pytest.fixture
def config(finished, tmp_path):
    return replace(finished["sft"], steps=6, out=str(tmp_path / "run"), save_every=100)


def test_the_time_of_a_step_and_of_its_phases(config, monkeypatch):
    """A clock that only the work moves: 1 + 16 in no phase, 2 + 4 + 8 in the rollout, 3 + 1 in the
    scoring within it, 32 in the evaluation."""
    now = [0.0]
    monkeypatch.setattr("minvenus.train.run.time", SimpleNamespace(perf_counter=lambda: now[0]))

    def work(seconds):
        now[0] += seconds

    model = Qwen3(SMALL, seed=0)
    with open_run("sft", replace(config, steps=1)) as run:
        for step in run.steps(model, adamw(model, (0.9, 0.95), 0.01), TINY.files, data=""):
            work(1)
            with run.phase("rollout"):
                work(2)
                for seconds in (3, 1):
                    with run.phase("scoring"):
                        work(seconds)
                work(8)
            work(16)
            with run.phase("evaluation"):
                work(32)
            run.log(step, {"tokens": 20, "rollout_tokens": 42})
    assert read_jsonl(f"{config.out}/timing.jsonl") == [
        {
            "step": 1,
            "scoring_seconds": 4,
            "rollout_seconds": 14,
            "evaluation_seconds": 32,
            "seconds": 63,
            "tokens_per_second": 2,
        }
    ]


def raises(error, at_step):
    def function(step):
        if step == at_step:
            raise error

    return function


@pytest.mark.parametrize(
    ("where", "step", "error", "newest"),
    [
        ("during", 4, Diverged("the loss is nan"), "step-00000003"),
        ("during", 4, KeyboardInterrupt("at once"), "step-00000003"),
        ("after", 4, Diverged("the loss is nan"), "step-00000002"),  # in an update: of save_every
        ("after", 4, KeyboardInterrupt("at once"), "step-00000002"),
        ("during", 1, RuntimeError("out of memory"), None),
        ("after", 1, RuntimeError("out of memory"), None),
    ],
)
def test_a_run_that_is_left_outside_of_an_update_saves_and_it_goes_on_to_the_same_bytes(
    where, step, error, newest, config, tmp_path
):
    config = replace(config, save_every=2)
    made_up_run(replace(config, out=str(tmp_path / "whole")))
    words = "step 4: the loss is nan" if isinstance(error, Diverged) else str(error)
    with pytest.raises(type(error), match=words):
        made_up_run(config, **{where: raises(error, step)})
    checkpoint_folder = latest_checkpoint(config.out)
    assert (checkpoint_folder and checkpoint_folder.name) == newest
    made_up_run(config if newest else replace(config, batch=1))  # nothing contradicts it
    assert content(config.out) == content(tmp_path / "whole")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_ends_the_run_by_name_and_is_not_written(
    bad, config, monkeypatch
):
    real = runs.made_up_update
    monkeypatch.setattr(runs, "made_up_update", lambda *rest: bad if rest[2] == 2 else real(*rest))
    with pytest.raises(Diverged, match=r"step 2: grad_norm is (nan|inf), not a finite number"):
        made_up_run(config)
    assert len(read_jsonl(f"{config.out}/metrics.jsonl")) == 1
    assert latest_checkpoint(config.out) is None, "the weights have moved"


def test_the_lines_of_a_step_are_on_the_disk_before_its_checkpoint(config, monkeypatch):
    order, real = [], checkpoint.save
    monkeypatch.setattr("minvenus.train.run.sync", lambda path: order.append(path.name))
    monkeypatch.setattr(checkpoint, "save", lambda *rest: order.append("checkpoint") or real(*rest))
    made_up_run(replace(config, steps=1))
    assert order == ["metrics.jsonl", "timing.jsonl", "checkpoint"]


def test_other_data_is_refused_and_nothing_changes(config):
    made_up_run(config)
    before = content(config.out)
    with pytest.raises(ConfigError, match="was made with other data, another prompt"):
        made_up_run(config, data="other")
    assert content(config.out) == before


# ------------------------------------------------------------------------------------ the two files


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=6),
    st.integers(0, 6),
    st.integers(0, 200),
)
def test_cutting_back_after_any_tear_leaves_the_first_lines_byte_for_byte(
    tmp_path_factory, losses, step, torn
):
    path = tmp_path_factory.mktemp("torn") / "metrics.jsonl"
    lines = [json.dumps({"step": i, "loss": loss}) + "\n" for i, loss in enumerate(losses, 1)]
    kept, full = "".join(lines[:step]), "".join(lines)
    path.write_text(
        full[: max(len(kept), len(full) - torn)]
    )  # nothing before the checkpoint is lost
    cut_back(path, step)
    assert path.read_text() == kept


def test_a_spoilt_line_in_the_middle_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl has a line that is not JSON"):
        cut_back(path, 1)
    assert read_jsonl(tmp_path / "absent.jsonl") == []
