"""What a run shows: a line that renews itself on a terminal, a few plain lines elsewhere, and how
it ends."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minvenus import console
from minvenus.config import ConfigError
from minvenus.console import Progress, clock, one_line_errors, stop_on_signals, table
from minvenus.train.optim import Diverged

ROOT = Path(__file__).resolve().parents[1]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(out, steps, start=0):
    progress = Progress("sft", start, steps, out)
    for step in range(start + 1, steps + 1):
        progress.show(step, {"loss": 1.2346, "tokens": 300}, 12345.6)
    return out.getvalue()


@pytest.mark.parametrize(
    ("start", "steps", "printed"),
    [
        (0, 95, [1, *range(9, 95, 9), 95]),
        (0, 3, [1, 2, 3]),
        (5, 40, [6, *range(8, 41, 4)]),
    ],
)
def test_a_file_gets_the_first_step_every_tenth_and_the_last(start, steps, printed):
    lines = shown(io.StringIO(), steps, start).splitlines()
    assert [line.split()[1] for line in lines] == [f"{step}/{steps}" for step in printed]
    assert lines[-1] == f"sft {steps}/{steps}  0:00 left  12,346 tokens/s  loss 1.235"


def test_a_terminal_gets_one_line_that_is_renewed_and_ended(monkeypatch):
    monkeypatch.setattr(console.shutil, "get_terminal_size", lambda: os.terminal_size((20, 5)))
    text = shown(Terminal(), 4)
    before, *lines = text.split("\r\033[K")
    assert before == "" and len(lines) == 4 and text.count("\n") == 1 and text.endswith("\n")
    assert {len(line.rstrip("\n")) for line in lines} == {19}, "a wrapped line cannot be renewed"


def test_a_run_that_stops_early_leaves_the_terminal_on_a_new_line():
    for out, end in ((Terminal(), "\n"), (io.StringIO(), "")):
        progress = Progress("sft", 0, 100, out)
        progress.show(42, {"loss": 1.0}, 1.0)
        before = out.getvalue()
        progress.end()
        assert out.getvalue() == before + end


def test_what_is_left_follows_from_the_steps_of_this_process(monkeypatch):
    now = iter([100.0, 130.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(now))
    out = io.StringIO()
    Progress("sft", 10, 20, out).show(12, {})  # two steps in 30 s, eight to go
    assert out.getvalue() == "sft 12/20  2:00 left\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0:00"), (59.9, "0:59"), (65, "1:05"), (7384, "2:03:04")]
)
def test_times_worked_by_hand(seconds, text):
    assert clock(seconds) == text


def test_columns_of_a_table_are_aligned():
    rows = [("of", "a", "bb"), ("name", "100", "2")]
    assert table(rows) == "of      a  bb\nname  100   2"
    assert table(rows, left=True) == "of    a    bb\nname  100  2"


AT_ONCE = "stopped at once; the same command goes on from what was saved"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("bad flag"), 2, "run.py: bad flag\n"),
        (Diverged("too fast"), 2, "run.py: too fast\n"),
        (OSError("no room"), 2, "run.py: no room\n"),
        (KeyboardInterrupt("3 of 4 done"), 130, "\nrun.py: 3 of 4 done\n"),
        (KeyboardInterrupt(), 130, f"\nrun.py: {AT_ONCE}\n"),
    ],
)
def test_what_the_user_can_mend_is_one_line_and_an_exit_code(error, code, line, capsys):
    with pytest.raises(SystemExit) as end, one_line_errors("run.py"):
        raise error
    assert end.value.code == code and capsys.readouterr().err == line


def test_a_terminal_that_knows_fewer_characters_is_no_error(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", out)
    with one_line_errors("run.py"):
        print("–")
    assert out.buffer.getvalue() == b"?\n"


BROKEN = """
from minvenus.console import one_line_errors
with one_line_errors("run.py"):
    print("a line that nobody reads")
    raise OSError("no room")
"""


@pytest.mark.parametrize(
    ("unbuffered", "arguments", "code", "error"),
    [
        ("", ["-c", BROKEN], 2, "run.py: no room\n"),
        ("1", "-m minvenus.experiments credit --example no-visit".split(), 0, ""),
    ],
)
def test_where_the_reader_of_the_output_is_gone_only_another_error_is_said(
    unbuffered, arguments, code, error
):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )
    assert (done.returncode, done.stderr) == (code, error)
    os.close(writer)


def test_a_message_of_any_length_is_cut_in_its_middle(capsys):
    with pytest.raises(SystemExit), one_line_errors("run.py"):
        raise ConfigError(f"begin {'x' * 100_000} and the fix")
    error = capsys.readouterr().err
    assert error.startswith("run.py: begin x") and error.endswith("x and the fix\n")
    assert " ... " in error and len(error) < 5000


@pytest.mark.parametrize(
    "bug", [ValueError("internal"), KeyError("x"), RuntimeError("out of memory")]
)
def test_a_bug_keeps_its_traceback(bug):
    with pytest.raises(type(bug)), one_line_errors("run.py"):
        raise bug


ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def interrupted(*numbers) -> list[int]:
    """Those of the signals that raise KeyboardInterrupt when they come one after the other."""
    raising = []
    for number in numbers:
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt:
            raising.append(number)
    return raising


@pytest.fixture
def not_ignored():
    """As in a terminal: under nohup the tests themselves are started with SIGHUP ignored."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_second_signal_raises_if_asked_and_no_other_one_does_so_saving_ends(not_ignored, capfd):
    before = [signal.getsignal(number) for number in ENDING]
    with stop_on_signals(once_more=False) as stop:
        assert interrupted(*ENDING * 2) == [] and stop == [*ENDING * 2]
    with stop_on_signals() as stop:
        assert interrupted(*ENDING * 2) == [ENDING[1]] and stop == [*ENDING * 2]
    assert [signal.getsignal(number) for number in ENDING] == before
    assert capfd.readouterr().err == (
        "\nstopping and saving\n\nstopping after this step; once more to stop at once\n"
    )


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop == [] and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
