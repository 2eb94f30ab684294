"""Results of live calls in one SQLite file: recorded once, replayed exactly and without a network.

    calls(key, text)      key = call_key(name, arguments) of one query or one page, text = its result as JSON,
                          or "ERROR " and [kind, message] as JSON

While recording, a result that is in the file is not asked for again, so the recorded run sees what a replay will see.
A failure is: a timeout must not become what a page says for ever. A replay repeats results and failures as they are in
the file. A call that is not there stops the run: shown to the model as a web error, it would change the experiment.

Every row is one transaction, so a killed process leaves whole rows only. Threads share one connection under a
lock; several processes may record into the same file. The judge keeps its verdicts in such a file.
"""

import json
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from minvenus.config import ConfigError
from minvenus.tools.base import ToolError

BUSY_SECONDS = 30.0                   # wait for another process that writes
ERROR = "ERROR "                      # how the text of a failure begins
EMPTY = "[]"                          # a search without results is asked for again, too


def call_key(name: str, arguments: dict) -> str:
    return json.dumps({"name": name, "arguments": arguments}, sort_keys=True, separators=(",", ":"))


class Cassette:
    """One file, either to record into or, with record=False, to replay from."""

    def __init__(self, file, record: bool = True):
        self.file, self.record = Path(file), record
        self._lock = threading.Lock()
        mode = "rwc" if record else "rw"        # not ro: only a writer can roll back the journal of a killed recording
        if record:
            self.file.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(f"{self.file.resolve().as_uri()}?mode={mode}", uri=True, timeout=BUSY_SECONDS,
                                       check_same_thread=False, isolation_level=None)
            tables = [name for name, in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            if tables != ["calls"] and (tables or not record):          # never write into another database
                raise sqlite3.DatabaseError("it is another database")
            if record:
                columns = "key TEXT PRIMARY KEY, text TEXT NOT NULL"
                self._db.execute(f"CREATE TABLE IF NOT EXISTS calls ({columns}) WITHOUT ROWID")
        except sqlite3.Error as error:
            hint = "" if record else "; record:FILE makes one"
            raise ConfigError(f"{self.file} is no recording of tools ({error}){hint}") from None

    def get(self, key: str) -> str | None:
        row = self._execute("SELECT text FROM calls WHERE key = ?", key)
        return row[0] if row else None

    def put(self, key: str, text: str) -> str:
        """Keep the first text of a key that is no failure, else the newest failure. Returns the one that is kept:
        another thread or process may have been first."""
        self._execute("INSERT INTO calls VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET text = excluded.text "
                      "WHERE substr(text, 1, ?) = ? OR text = ?", key, text, len(ERROR), ERROR, EMPTY)
        return self.get(key) or text

    def _execute(self, statement: str, *values) -> tuple | None:
        try:
            with self._lock:
                return self._db.execute(statement, values).fetchone()
        except sqlite3.Error as error:              # a full disk, for one: what is not recorded cannot be replayed
            raise ConfigError(f"{self.file} cannot be used any more: {error}") from None

    def fetch(self, name: str, arguments: dict, call: Callable[[], list]) -> list:
        """The recorded result, else that of `call()`, which is recorded. A ToolError of either is raised."""
        key = call_key(name, arguments)
        text = self.get(key)
        if self.record and (text is None or text.startswith(ERROR) or text == EMPTY):
            try:
                text = json.dumps(call())
            except ToolError as error:
                text = ERROR + json.dumps([error.kind, str(error)])
            text = self.put(key, text)
        if text is None:
            count = self._execute("SELECT count(*) FROM calls")
            raise ConfigError(f"none of the {count[0] if count else 0} calls in {self.file} is {key[:500]}: the "
                              "replayed run must have the question, model, system prompt, seed, sampling and limits "
                              "of the recorded one. To add what is missing, use record: with this file")
        try:
            value = json.loads(text.removeprefix(ERROR))
        except ValueError:
            value = None
        failed = text.startswith(ERROR)
        if not isinstance(value, list) or (failed and len(value) != 2):    # as a web error it would change the run
            raise ConfigError(f"{self.file} has something else than a result for {key[:500]}: it is damaged, or of "
                              "another version. Record into a new file")
        if failed:
            raise ToolError(*value)
        return value

    def close(self) -> None:
        with self._lock:
            self._db.close()
