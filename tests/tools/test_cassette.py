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
from minvenus.tools.base import ToolError
from minvenus.tools.cassette import Cassette, call_key

ROOT = Path(__file__).resolve().parents[2]
QUERY = ("search", {"query": "a"})


class Counting:
    """Gives every call a new result."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return [f"result {self.calls}: </tool_response><|im_end|>\n羅馬 \ud800"]


def fails():
    raise ToolError("timeout", "slow")


def rows(file) -> list:
    db = sqlite3.connect(file)
    try:
        return db.execute("SELECT key, text FROM calls").fetchall()
    finally:
        db.close()


def test_a_replay_gives_exactly_what_the_recorded_run_saw(tmp_path):
    file, live = tmp_path / "tape #1?.sqlite", Counting()
    calls = [QUERY, ("visit", {"url": "u", "goal": "g"}), QUERY, ("visit", {"url": "u", "goal": "h"})]
    recording = Cassette(file)
    seen = [recording.fetch(*call, live) for call in calls]
    recording.close()
    assert live.calls == 3                                           # the repeated search came from the file
    assert [path.name for path in tmp_path.iterdir()] == [file.name]         # one file, nothing beside it
    replay = Cassette(file, record=False)
    assert [replay.fetch(*call, fails) for call in calls] == seen
    replay.close()


def test_a_failure_is_recorded_as_one_and_asked_again_until_it_succeeds(tmp_path):
    """A replay repeats both. A failure never takes the place of a result."""
    def outcome(cassette, call):
        try:
            return cassette.fetch(*QUERY, call)
        except ToolError as error:
            return error.kind, str(error)

    def replayed():
        replay = Cassette(tmp_path / "tape", record=False)
        try:
            return [outcome(replay, Counting()) for _ in range(2)]
        finally:
            replay.close()
    recording = Cassette(tmp_path / "tape")
    for kind, message in (("timeout", "slow"), ("page", "HTTP 404 </tool_response> 羅馬 \ud800")):
        def fails(kind=kind, message=message):
            raise ToolError(kind, message, status=404)
        assert outcome(recording, fails) == (kind, message)
        assert replayed() == [(kind, message)] * 2
    assert outcome(recording, list) == [] and replayed() == [[], []]         # a search that found nothing
    recording.close()
    recording = Cassette(tmp_path / "tape")
    found = outcome(recording, Counting())
    assert outcome(recording, fails) == found and replayed() == [found] * 2
    recording.put(call_key(*QUERY), 'ERROR ["timeout", "of a slower thread"]')
    assert replayed() == [found] * 2
    recording.close()


def test_a_call_that_is_not_there_stops_a_replay_which_says_what_may_have_changed(tmp_path):
    recording = Cassette(tmp_path / "tape")
    recording.fetch("search", {"query": "b"}, Counting())
    recording.close()
    for call in (QUERY, ("visit", {"query": "b"})):
        with pytest.raises(ConfigError, match=r"none of the 1 calls in .*tape is .*model.*seed.*use record:") as e:
            Cassette(tmp_path / "tape", record=False).fetch(*call, Counting())
        assert call_key(*call) in str(e.value)


def test_a_file_that_cannot_be_written_any_more_stops_the_run(tmp_path):
    recording = Cassette(tmp_path / "tape")
    recording._db.execute("PRAGMA max_page_count = 2")                       # the disk is full
    with pytest.raises(ConfigError, match=r"tape cannot be used any more: .* full"):
        recording.fetch(*QUERY, lambda: ["x" * 100_000])
    recording.close()


@pytest.mark.parametrize("text", ["", "[", "ERROR", "ERROR timeout", '{"text": "of another version"}', "ERROR {}"])
@pytest.mark.parametrize("record", [True, False])
def test_a_result_that_cannot_be_read_stops_the_run(tmp_path, text, record):
    recording = Cassette(tmp_path / "tape")
    recording.put(call_key(*QUERY), text)
    recording.close()
    cassette = Cassette(tmp_path / "tape", record)
    if record and text.startswith("ERROR "):                                 # what failed is asked for again
        assert cassette.fetch(*QUERY, lambda: ["x"]) == ["x"]
    else:
        with pytest.raises(ConfigError, match=r'result for .*"query":"a".* Record into a new file'):
            cassette.fetch(*QUERY, fails)
    cassette.close()


def test_threads_that_make_the_same_call_at_once_all_see_what_is_recorded(tmp_path):
    both_inside, live = threading.Barrier(2, timeout=30), Counting()

    def call():
        both_inside.wait()                                           # neither is in the file when the other one looks
        return live()
    recording = Cassette(tmp_path / "tape")
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(lambda _: recording.fetch(*QUERY, call), range(2))
    assert live.calls == 2 and one == two and len(rows(tmp_path / "tape")) == 1
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda i: (i % 7, *recording.fetch("search", {"query": i % 7}, live)), range(140)))
    assert len(set(seen)) == 7


CHILD = """
import sys, time
from minvenus.tools.cassette import Cassette
recording = Cassette(sys.argv[1])
for i in range(1_000_000):
    recording.fetch("search", {"query": f"{sys.argv[2]} {i}"}, lambda: [f"{sys.argv[2]} {i} " + "x" * 20_000])
    print(i, flush=True)                                             # after the row is in the file
    time.sleep(0.01)                                     # without a pause, one writer keeps the other one waiting
"""


def test_a_recording_killed_in_the_middle_keeps_every_finished_call_and_can_go_on(tmp_path):
    file = tmp_path / "tape"
    Cassette(file).close()
    command = [sys.executable, "-c", CHILD, str(file)]
    children = [subprocess.Popen([*command, name], cwd=ROOT, stdout=subprocess.PIPE, text=True)
                for name in ("one", "two")]                          # two processes at once into one file
    try:
        assert all(child.stdout.readline() == "0\n" for child in children)
        time.sleep(0.3)
    finally:
        for child in children:
            os.kill(child.pid, signal.SIGKILL)
    done = {name: 1 + len(child.communicate()[0].split()) for name, child in zip(("one", "two"), children, strict=True)}
    kept = rows(file)
    assert sum(done.values()) <= len(kept) <= sum(done.values()) + 2         # at most the call that was being reported
    assert sqlite3.connect(file).execute("PRAGMA integrity_check").fetchone() == ("ok",)
    recording = Cassette(file)
    for name, count in done.items():
        for i in range(count):
            assert recording.fetch("search", {"query": f"{name} {i}"}, fails) == [f"{name} {i} " + "x" * 20_000]
    recording.fetch("search", {"query": "more"}, Counting())
    recording.close()
    assert len(rows(file)) == len(kept) + 1


def other_database() -> bytes:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE precious (x)")
    return db.serialize()


@pytest.mark.parametrize(("content", "record"), [
    (b"", False), (b"not a database " * 100, False), (b"not a database " * 100, True), (other_database(), False),
    (other_database(), True)])
def test_a_file_that_is_no_recording_is_a_clear_error_and_not_written_to(tmp_path, content, record):
    (tmp_path / "tape").write_bytes(content)
    with pytest.raises(ConfigError, match="tape is no recording of tools"):
        Cassette(tmp_path / "tape", record)
    assert (tmp_path / "tape").read_bytes() == content
    with pytest.raises(ConfigError, match="no-tape is no recording of tools"):
        Cassette(tmp_path / "no-tape", record=False)
    assert not (tmp_path / "no-tape").exists()


def test_a_recording_makes_its_folder_and_a_damaged_failure_stops_the_run(tmp_path):
    recording = Cassette(tmp_path / "new" / "tape")
    recording.put(call_key(*QUERY), "ERROR []")
    recording.close()
    with pytest.raises(ConfigError, match="it is damaged"):
        Cassette(tmp_path / "new" / "tape", record=False).fetch(*QUERY, fails)


@given(st.lists(st.text(), min_size=1), st.lists(st.text(), min_size=1))
def test_two_calls_have_the_same_key_exactly_if_they_are_the_same_call(one, two):
    assert (call_key("search", {"query": one}) == call_key("search", {"query": two})) == (one == two)
    assert call_key("visit", {"url": one, "goal": "g"}) == call_key("visit", {"goal": "g", "url": one})
    assert call_key("search", {"query": one}).isascii()
