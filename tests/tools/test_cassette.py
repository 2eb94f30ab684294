"""Recording and replay: exact, loud about what is missing, safe under threads and kill -9."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import ConfigError
from minvenus.tools.base import ToolResult, failed, run_tool
from minvenus.tools.cassette import MissingRecording, Recorder, Replay, call_key

ROOT = Path(__file__).resolve().parents[2]


class Counting:
    """Answers every call with a new text, and errors on request."""

    def __init__(self):
        self.calls = 0
        self.closed = False

    def search(self, queries):
        self.calls += 1
        return failed("timeout", "slow") if queries == ["fails"] else ToolResult(f"result {self.calls} of {queries}")

    def visit(self, urls, goal):
        self.calls += 1
        return ToolResult(f"page {self.calls}: </tool_response><|im_end|>\n羅馬 {urls} {goal}")

    def close(self):
        self.closed = True


def rows(file) -> list:
    db = sqlite3.connect(file)
    try:
        return db.execute("SELECT key, text FROM calls").fetchall()
    finally:
        db.close()


def test_a_replay_gives_exactly_what_the_recorded_run_saw(tmp_path):
    file, live = tmp_path / "tape #1?.sqlite", Counting()
    recorder = Recorder(live, file)
    seen = [recorder.search(["a"]), recorder.visit(["u"], "g"), recorder.search(["a"]), recorder.visit(["u"], "h")]
    recorder.close()
    assert live.closed and live.calls == 3                   # the repeated search came from the tape
    assert [path.name for path in tmp_path.iterdir()] == [file.name]          # one file, nothing beside it
    replay = Replay(file)
    assert [replay.search(["a"]), replay.visit(["u"], "g"), replay.search(["a"]), replay.visit(["u"], "h")] == seen
    assert run_tool(replay, "search", {"query": "a"}) == seen[0]
    replay.close()


@pytest.mark.parametrize("call", [("search", {"query": ["b"]}), ("search", {"query": ["a", "a"]}), ("visit", {"url": ["u"],
                                  "goal": "other"}),
                                  ("search", {"query": ["fails"]})])
def test_a_call_that_was_never_recorded_stops_the_run_and_is_named(tmp_path, call):
    recorder = Recorder(Counting(), tmp_path / "tape")
    recorder.search(["a"])
    recorder.visit(["u"], "g")
    assert recorder.search(["fails"]).error == "timeout"
    recorder.close()
    with pytest.raises(MissingRecording) as caught:
        run_tool(Replay(tmp_path / "tape"), *call)
    assert call_key(*call) in str(caught.value)


def test_errors_and_blank_texts_are_never_recorded(tmp_path):
    live = Counting()
    recorder = Recorder(live, tmp_path / "tape")
    assert recorder.search(["fails"]) == recorder.search(["fails"]) == failed("timeout", "slow")
    assert live.calls == 2                                   # asked again: an error is not an answer
    live.search = lambda queries: ToolResult("  ")
    assert run_tool(recorder, "search", {"query": ["blank"]}).error == "empty"
    assert rows(tmp_path / "tape") == []


def test_of_two_threads_that_make_the_same_call_at_once_both_see_what_is_recorded(tmp_path):
    both_inside, live = threading.Barrier(2, timeout=10), Counting()

    def search(queries):
        both_inside.wait()                                   # neither is in the file when the other one asks
        return Counting.search(live, queries)
    live.search = search
    recorder = Recorder(live, tmp_path / "tape")
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(recorder.search, [["a"], ["a"]])
    recorder.close()
    assert live.calls == 2 and one == two
    assert rows(tmp_path / "tape") == [(call_key("search", {"query": ["a"]}), one.text)]


def test_many_threads_that_make_the_same_call_all_see_the_same_text(tmp_path):
    recorder = Recorder(Counting(), tmp_path / "tape")
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda i: (i % 7, recorder.search([f"q{i % 7}"]).text), range(140)))
    recorder.close()
    assert len(set(seen)) == 7
    replay = Replay(tmp_path / "tape")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda i: (i % 7, replay.search([f"q{i % 7}"]).text), range(140))) == seen


CHILD = """
import sys, time
from minvenus.tools.base import ToolResult
from minvenus.tools.cassette import Recorder
class Tools:
    def search(self, queries): return ToolResult(queries[0] + " " + "x" * 20_000)
recorder = Recorder(Tools(), sys.argv[1])
for i in range(1_000_000):
    recorder.search([f"{sys.argv[2]} {i}"])
    print(i, flush=True)                                     # after the row is in the file
    time.sleep(0.01)                                         # without a pause, one writer keeps the other one waiting
"""


def test_a_recording_killed_in_the_middle_keeps_every_finished_call_and_can_go_on(tmp_path):
    file = tmp_path / "tape"
    Recorder(Counting(), file).close()
    children = [subprocess.Popen([sys.executable, "-c", CHILD, str(file), name], cwd=ROOT, stdout=subprocess.PIPE, text=True)
                for name in ("one", "two")]                  # two processes at once into one file
    try:
        assert all(child.stdout.readline() == "0\n" for child in children)
        time.sleep(0.3)
    finally:
        for child in children:
            os.kill(child.pid, signal.SIGKILL)
    done = {name: 1 + len(child.communicate()[0].split()) for name, child in zip(("one", "two"), children, strict=True)}
    replay = Replay(file)
    for name, count in done.items():
        for i in range(count):
            assert replay.search([f"{name} {i}"]).text == f"{name} {i} " + "x" * 20_000
    replay.close()
    kept = rows(file)
    assert sum(done.values()) <= len(kept) <= sum(done.values()) + 2           # at most the call that was being reported
    assert sqlite3.connect(file).execute("PRAGMA integrity_check").fetchone() == ("ok",)
    recorder = Recorder(Counting(), file)
    assert recorder.search(["more"]).error is None
    recorder.close()
    assert len(rows(file)) == len(kept) + 1


@pytest.mark.parametrize(("content", "message"), [(None, "there is no recording"), (b"not a database " * 100, "cannot be used"),
                                                  (b"", "not a recording of tools")])
def test_a_file_that_is_no_recording_is_a_clear_error(tmp_path, content, message):
    file = tmp_path / "tape"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        Replay(file)


def test_somebody_elses_database_is_not_written_to(tmp_path):
    db = sqlite3.connect(tmp_path / "theirs")
    db.execute("CREATE TABLE precious (x)")
    db.commit()
    db.close()
    before = (tmp_path / "theirs").read_bytes()
    with pytest.raises(ConfigError, match="not a recording of tools"):
        Recorder(Counting(), tmp_path / "theirs")
    assert (tmp_path / "theirs").read_bytes() == before
    with pytest.raises(ConfigError, match="does not exist"):
        Recorder(Counting(), tmp_path / "no" / "tape")


@given(st.lists(st.text(), min_size=1), st.lists(st.text(), min_size=1))
def test_two_calls_have_the_same_key_exactly_if_they_are_the_same_call(one, two):
    assert (call_key("search", {"query": one}) == call_key("search", {"query": two})) == (one == two)
    assert call_key("visit", {"url": one, "goal": "g"}) == call_key("visit", {"goal": "g", "url": one})
    assert call_key("search", {"query": one}).isascii()
