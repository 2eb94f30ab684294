"""A run in its folder: what a resumed run may change, its two files, how it ends, and what an error
keeps."""

import errno
import json
from dataclasses import replace
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
from minvenus.model.qwen3 import Qwen3
from minvenus.train import checkpoint
from minvenus.train.optim import Diverged, adamw
from minvenus.train.run import cut_back, open_run
from tests.train import runs
from tests.train.igpo_runs import MIXED, script_runs, small_igpo, write_model
from tests.train.runs import SMALL, TINY, content, made_up_run, small_config, write_inputs

MAIN = {"sft": train_sft.main, "igpo": train_igpo.main}
# What a resumed run may change: settings of memory, speed and reports. All others decide what is
# learned.
MAY_CHANGE = {
    "sft": "out device plan pack_tokens recompute offload evaluate_every save_every",
    "igpo": "out device plan pack_tokens recompute offload evaluate_every save_every "
    "pages expected_context tool_seconds rollouts_every steps",
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


class Loaded(Exception):
    """The run was not refused, and begins to load its model."""


# ---------------------------------------------------------------- settings of a resumed run


def flat(settings: dict) -> list[tuple[dict, str]]:
    """(settings, name) of every setting; those of recipe and loss are shown one by one."""
    nested = [value for value in settings.values() if isinstance(value, dict)]
    names = [(settings, name) for name in settings if not isinstance(settings[name], dict)]
    return names + [(fields, name) for fields in nested for name in fields]


@pytest.mark.parametrize("script", MAIN)
def test_a_setting_that_changes_what_is_learned_is_refused_before_a_model_is_loaded(
    script, finished, monkeypatch
):
    for module in (train_sft, train_igpo):
        monkeypatch.setattr(module, "load_start", Mock(side_effect=Loaded))
    path = Path(finished[script].out) / "run.json"
    text = path.read_text()
    for place, (_, name) in enumerate(flat(json.loads(text))):
        settings = json.loads(text)
        flat(settings)[place][0][name] = "other"
        path.write_text(json.dumps(settings))
        may_change = name in MAY_CHANGE[script].split()
        words = "" if may_change else f"other settings: {name} was 'other', is "
        with pytest.raises(Loaded if may_change else ConfigError, match=words):
            MAIN[script](finished[script])
    path.write_text(text)


def test_a_disk_without_locks_is_not_taken_for_another_process(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fcntl.flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    )
    with pytest.raises(OSError, match="No locks available"), claimed(tmp_path, "training"):
        pass


def test_a_run_goes_on_with_other_memory_and_run_json_holds_it(finished, monkeypatch):
    script_runs(monkeypatch, finished["igpo"], MIXED)
    before = content(finished["igpo"].out)
    train_igpo.main(replace(finished["igpo"], pages=999, pack_tokens=999))
    saved = json.loads((Path(finished["igpo"].out) / "run.json").read_text())
    assert saved["pages"] == saved["pack_tokens"] == 999
    assert saved["recipe"]["lead_in"] == "Answer.", "the one that is used"
    assert content(finished["igpo"].out) == before


def test_igpo_with_more_steps_learns_what_a_longer_run_learns(
    finished, tmp_path, monkeypatch, capsys
):
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
    capsys.readouterr()
    train_igpo.main(replace(config, steps=1, out=str(tmp_path / "whole")))
    assert "step-00000002, the last step: nothing is left to do\n" in capsys.readouterr().out
    assert read_jsonl(tmp_path / "whole" / "metrics.jsonl") == whole, "it has more steps already"


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
    first = config if newest else replace(config, batch=1)  # then nothing contradicts other ones
    with pytest.raises(type(error), match=words):
        made_up_run(first, **{where: raises(error, step)})
    checkpoint_folder = latest_checkpoint(config.out)
    assert (checkpoint_folder and checkpoint_folder.name) == newest
    made_up_run(config)
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


def test_a_resumed_run_says_what_is_left_by_the_steps_that_it_has_made_itself(
    config, monkeypatch, capsys
):
    now = [0.0]

    def ten_seconds(step):
        now[0] += 10

    monkeypatch.setattr("minvenus.console.time", SimpleNamespace(monotonic=lambda: now[0]))
    with pytest.raises(KeyboardInterrupt):
        made_up_run(config, during=raises(KeyboardInterrupt(), 3))
    capsys.readouterr()
    made_up_run(config, during=ten_seconds)
    assert "sft 3/6  0:30 left" in capsys.readouterr().err


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


def test_a_spoilt_line_in_the_middle_is_an_error_that_names_the_file(config):
    made_up_run(config)
    path = Path(config.out) / "metrics.jsonl"
    path.write_text("{" + path.read_text())
    with pytest.raises(ConfigError, match=r"metrics\.jsonl has a line that is not JSON"):
        made_up_run(config)
    path.unlink()
    assert read_jsonl(path) == []
