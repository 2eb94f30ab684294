"""Metrics files: whole lines only, cut back to a checkpoint, the same bytes from the same numbers."""

import errno
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import ConfigError
from minvenus.train.metrics import Metrics, cut_back, read

finite = st.floats(allow_nan=False, allow_infinity=False)


def test_lines_go_to_two_files_and_come_back(tmp_path):
    log = Metrics(tmp_path / "run")
    log.log(1, {"loss": 0.1, "tokens": 3}, {"seconds": 1.5})
    log.log(2, {"loss": 1 / 3, "tokens": 4, "validation_loss": 2.0}, {"seconds": 1.25})
    log.sync()
    assert read(tmp_path / "run" / "metrics.jsonl") == [
        {"step": 1, "loss": 0.1, "tokens": 3}, {"step": 2, "loss": 1 / 3, "tokens": 4, "validation_loss": 2.0}]
    assert (tmp_path / "run" / "timing.jsonl").read_text() == '{"step": 1, "seconds": 1.5}\n{"step": 2, "seconds": 1.25}\n'
    assert read(tmp_path / "absent.jsonl") == []


@given(st.lists(finite, min_size=1, max_size=6), st.integers(0, 6), st.integers(0, 200))
def test_going_on_after_any_tear_ends_with_the_bytes_of_an_unbroken_run(tmp_path_factory, losses, step, torn):
    step = min(step, len(losses))
    whole, broken = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("broken")
    for i, loss in enumerate(losses):
        Metrics(whole, i).log(i + 1, {"loss": loss}, {})
    full = (whole / "metrics.jsonl").read_bytes()
    kept = b"".join(full.splitlines(keepends=True)[:step])
    (broken / "metrics.jsonl").write_bytes(full[:max(len(kept), len(full) - torn)])      # nothing before the checkpoint is lost
    log = Metrics(broken, step)
    assert (broken / "metrics.jsonl").read_bytes() == kept
    for i in range(step, len(losses)):
        log.log(i + 1, {"loss": losses[i]}, {})
    assert (broken / "metrics.jsonl").read_bytes() == full


def test_a_number_that_is_not_finite_is_refused_by_name(tmp_path):
    log = Metrics(tmp_path)
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"step 3: loss (nan|inf) is not a finite number"):
            log.log(3, {"grad_norm": 1.0, "loss": bad}, {})
    assert read(tmp_path / "metrics.jsonl") == []


def test_a_spoilt_line_in_the_middle_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"st\n{"step": 2}\n')
    for use in (lambda: read(path), lambda: cut_back(path, 1)):
        with pytest.raises(ConfigError, match=r"metrics\.jsonl has a line that is not JSON"):
            use()


def test_a_full_disk_names_the_file_and_leaves_a_torn_line_that_the_next_run_drops(tmp_path, monkeypatch):
    log = Metrics(tmp_path)
    log.log(1, {"loss": 1.0}, {})
    path = tmp_path / "metrics.jsonl"

    class Full(io.StringIO):
        def __exit__(self, *error):
            with open(path, "a") as file:
                file.write(self.getvalue()[:5])
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match=r"No space left on device: '.*metrics\.jsonl'"):
        patch.setattr(Path, "open", lambda self, *a, **k: Full())
        log.log(2, {"loss": 0.5}, {})
    assert path.read_text().endswith('\n{"ste') and [row["step"] for row in read(path)] == [1]
    Metrics(tmp_path, 1).log(2, {"loss": 0.5}, {})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]
