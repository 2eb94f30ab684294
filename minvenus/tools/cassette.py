"""Record the results of any tool set in one SQLite file, and replay them exactly, with no network.

    calls(key, text)      key = canonical JSON of {"name", "arguments"}, text = what the model saw

Errors are never recorded: a timeout of one evening must not become what a page says for ever. While recording, a call that is
already in the file is answered from it, so the recorded run itself sees what a replay will see. A call that is not in the file
raises MissingRecording and stops a replayed run: it is a set-up error (another seed, prompt or model than the recorded one, or a
call that failed then), and showing it to the model as a web error would quietly change the experiment.

Every row is one transaction of the default rollback journal, so a killed process leaves whole rows only. One connection under a
lock serves all threads; the lock is not held while a tool runs. Several processes may record into the same file.
"""

import json
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from minvenus.config import ConfigError
from minvenus.tools.base import ToolResult

APPLICATION = 0x6D76_6373             # "mvcs" in the file's header: this database is one of ours
BUSY_SECONDS = 30.0                   # wait for another process that writes


class MissingRecording(ConfigError):
    """A call that the cassette does not have."""


def call_key(name: str, arguments: dict) -> str:
    return json.dumps({"name": name, "arguments": arguments}, sort_keys=True, separators=(",", ":"))


class Cassette:
    """The file: a table of calls and texts."""

    def __init__(self, file, create: bool):
        self.file = Path(file)
        if not create and not self.file.is_file():
            raise ConfigError(f"there is no recording {self.file}; make one with record:{self.file}")
        if create and not self.file.parent.is_dir():
            raise ConfigError(f"the folder {self.file.parent} does not exist")
        self.lock = threading.Lock()
        try:                          # rwc and rw, not ro: the journal of a killed recording can only be rolled back by a writer
            self.db = sqlite3.connect(f"{self.file.resolve().as_uri()}?mode={'rwc' if create else 'rw'}", uri=True,
                                      timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None)
            self.check(create)
        except sqlite3.Error as error:
            raise ConfigError(f"{self.file} cannot be used as a recording: {error}") from None

    def check(self, create: bool) -> None:
        """Take an empty file or one of ours, and nothing else: never write into somebody's other database."""
        empty = not self.db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        (mark,) = self.db.execute("PRAGMA application_id").fetchone()
        if mark != APPLICATION and not (empty and create):
            raise ConfigError(f"{self.file} is a database, but not a recording of tools")
        if create:
            self.db.execute(f"PRAGMA application_id = {APPLICATION}")
            self.db.execute("CREATE TABLE IF NOT EXISTS calls (key TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID")

    def get(self, key: str) -> str | None:
        with self.lock:
            row = self.db.execute("SELECT text FROM calls WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def put(self, key: str, text: str) -> None:
        """Keep the first text of a key."""
        with self.lock:
            self.db.execute("INSERT OR IGNORE INTO calls VALUES (?, ?)", (key, text))

    def close(self) -> None:
        with self.lock:
            self.db.close()


class Recorder:
    """A tool set that passes calls on and keeps what succeeded."""

    def __init__(self, tools, file):
        self.tools = tools
        self.cassette = Cassette(file, create=True)

    def search(self, queries: list[str]) -> ToolResult:
        return self.record("search", {"query": queries}, lambda: self.tools.search(queries))

    def visit(self, urls: list[str], goal: str) -> ToolResult:
        return self.record("visit", {"url": urls, "goal": goal}, lambda: self.tools.visit(urls, goal))

    def record(self, name: str, arguments: dict, call: Callable[[], ToolResult]) -> ToolResult:
        key = call_key(name, arguments)
        text = self.cassette.get(key)
        if text is None:
            result = call()
            if result.error is not None or not result.text.strip():       # a blank text counts as an error, see run_tool
                return result
            self.cassette.put(key, result.text)
            text = self.cassette.get(key)         # another thread may have been first: all must see the same text
            assert text is not None
        return ToolResult(text)

    def close(self) -> None:
        self.cassette.close()
        if hasattr(self.tools, "close"):
            self.tools.close()


class Replay:
    """A tool set that knows only what was recorded."""

    def __init__(self, file):
        self.cassette = Cassette(file, create=False)

    def search(self, queries: list[str]) -> ToolResult:
        return self.replay("search", {"query": queries})

    def visit(self, urls: list[str], goal: str) -> ToolResult:
        return self.replay("visit", {"url": urls, "goal": goal})

    def replay(self, name: str, arguments: dict) -> ToolResult:
        key = call_key(name, arguments)
        text = self.cassette.get(key)
        if text is None:
            raise MissingRecording(f"{self.cassette.file} has no recording of {key[:500]}: record the run again, with the same "
                                   "seed, prompt and model")
        return ToolResult(text)

    def close(self) -> None:
        self.cassette.close()
