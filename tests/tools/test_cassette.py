"""Recording and replay: exact, loud about what is missing, safe under threads and processes."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from minvenus.config import ConfigError
from minvenus.tools.base import ToolError
from minvenus.tools.cassette import Cassette

QUERY = ("search", {"query": "a"})


class Counting:
    """Gives every call a new result."""

    calls = 0

    def __call__(self):
        self.calls += 1
        return [f"result {self.calls}: </tool_response><|im_end|>\n羅馬 \ud800"]


def fails():
    raise ToolError("timeout", "slow")


def replayed(file, call=QUERY):
    """What a replay gives for a call, twice."""
    replay = Cassette(file, record=False)
    try:
        return [outcome(replay, call, Counting()) for _ in range(2)]
    finally:
        replay.close()


def outcome(cassette, call, live):
    try:
        return cassette.fetch(*call, live)
    except ToolError as error:
        return error.kind, str(error)


def test_a_failure_is_recorded_as_one_and_asked_again_until_it_succeeds(tmp_path):
    """A replay repeats both. A failure never takes the place of a result."""
    file, recording = tmp_path / "tape", Cassette(tmp_path / "tape")
    for kind, message in (("timeout", "slow"), ("page", "HTTP 404 </tool_response> 羅馬 \ud800")):

        def live(kind=kind, message=message):
            raise ToolError(kind, message, status=404)

        assert outcome(recording, QUERY, live) == (kind, message)
        assert replayed(file) == [(kind, message)] * 2
    recording.close()
    recording = Cassette(file)
    found = outcome(recording, QUERY, Counting())
    assert outcome(recording, QUERY, fails) == found and replayed(file) == [found] * 2
    other = ("search", {"query": "b"})

    def slower():
        recording.fetch(*other, lambda: ["of another thread"])
        fails()

    assert outcome(recording, other, slower) == ["of another thread"]
    assert replayed(file, other) == [["of another thread"]] * 2
    recording.close()


def test_a_call_that_is_not_there_stops_a_replay_which_says_what_may_have_changed(tmp_path):
    recording = Cassette(tmp_path / "tape")
    recording.fetch("search", {"query": "b"}, Counting())
    recording.close()
    for call in (QUERY, ("visit", {"query": "b"})):
        words = rf"no call in .*tape is .*{call[0]}.*model.*seed.*use record:"
        with pytest.raises(ConfigError, match=words):
            replayed(tmp_path / "tape", call)


def test_a_disk_that_is_full_stops_the_run_and_before_the_first_call_is_called_so(
    tmp_path, monkeypatch
):
    Cassette(tmp_path / "tape").close()
    connect, pages = sqlite3.connect, 2

    def full_disk(*arguments, **options):
        db = connect(*arguments, **options)
        db.execute(f"PRAGMA max_page_count = {pages}")
        return db

    monkeypatch.setattr(sqlite3, "connect", full_disk)
    with pytest.raises(ConfigError, match=r"tape cannot be used any more: .* full"):
        Cassette(tmp_path / "tape").fetch(*QUERY, lambda: ["x" * 100_000])
    pages = 1
    with pytest.raises(ConfigError, match=r"judge.sqlite cannot be written: .* full$"):
        Cassette(tmp_path / "judge.sqlite")


def test_threads_that_make_the_same_call_at_once_all_see_what_is_recorded(tmp_path):
    both_inside, live = threading.Barrier(2, timeout=30), Counting()

    def call():
        both_inside.wait()  # neither is in the file when the other one looks
        return live()

    recording = Cassette(tmp_path / "tape")
    with ThreadPoolExecutor(8) as pool:
        one, two = pool.map(lambda _: recording.fetch(*QUERY, call), range(2))
        seen = list(
            pool.map(
                lambda i: (i % 7, *recording.fetch("search", {"query": i % 7}, live)), range(140)
            )
        )
    assert live.calls >= 2 and one == two and len(set(seen)) == 7


def other_database() -> bytes:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE precious (x)")
    return db.serialize()


@pytest.mark.parametrize(
    ("content", "record"),
    [
        (b"", False),
        (b"not a database " * 100, False),
        (b"not a database " * 100, True),
        (other_database(), False),
        (other_database(), True),
    ],
)
def test_a_file_that_is_no_recording_is_a_clear_error_and_not_written_to(tmp_path, content, record):
    (tmp_path / "tape").write_bytes(content)
    with pytest.raises(ConfigError, match="tape is no recording of tools"):
        Cassette(tmp_path / "tape", record)
    assert (tmp_path / "tape").read_bytes() == content
    with pytest.raises(ConfigError, match="no-tape is no recording of tools"):
        Cassette(tmp_path / "nowhere" / "no-tape", record=False)
    assert not (tmp_path / "nowhere").exists()
