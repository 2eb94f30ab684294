"""Results of live calls in one SQLite file: recorded once, replayed exactly and without a network.

    calls(key, value)     key = one query or page as JSON, value = its result as JSON; or
                          key = "failed " and that, value = [kind, message] of the newest failure

While recording, a result that is in the file is taken from there, so the recorded run sees what a
replay will see. What has failed is asked for again: a timeout must not become what a page says for
ever. A replay repeats a result, else the failure. A call that is not there stops the run: shown to
the model as a web error, it would change the experiment.

Every row is one transaction, so a killed process leaves whole rows only. Threads share one
connection under a lock; several processes may record into the same file. The judge keeps its
verdicts in such a file.
"""

import json
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from minvenus.config import ConfigError
from minvenus.tools.base import ToolError

BUSY_SECONDS = 30.0                   # wait for another process that writes
TABLE = "CREATE TABLE calls (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"


class Cassette:
    """One file, either to record into or, with record=False, to replay from."""

    def __init__(self, file, record: bool = True):
        self.file = Path(file)
        self.record = record
        self._lock = threading.Lock()
        # a replay writes, too: only a writer can roll back the journal of a killed recording
        mode = "rw"
        if record:
            mode = "rwc"
            self.file.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(
                f"{self.file.resolve().as_uri()}?mode={mode}", uri=True, timeout=BUSY_SECONDS,
                check_same_thread=False, isolation_level=None)
            tables = [statement for statement, in self._db.execute("SELECT sql FROM sqlite_master")]
            if tables != [TABLE] and (tables or not record):
                raise sqlite3.DatabaseError("it is another database")
            if record:
                self._db.execute(TABLE.replace("TABLE", "TABLE IF NOT EXISTS"))
        except sqlite3.Error as error:
            if record and isinstance(error, sqlite3.OperationalError):       # a full disk, for one
                raise ConfigError(f"{self.file} cannot be written: {error}") from None
            hint = "" if record else "; record:FILE makes one"
            raise ConfigError(f"{self.file} is no recording of tools ({error}){hint}") from None

    def fetch(self, name: str, arguments: dict, call: Callable[[], list]) -> list:
        """The recorded result, else that of `call()`, which is recorded; or its ToolError."""
        question = {"name": name, "arguments": arguments}
        key = json.dumps(question, sort_keys=True, separators=(",", ":"))
        result = self._get(key)
        if result is None and self.record:
            try:
                self._put("INSERT OR IGNORE", key, call())
            except ToolError as error:
                self._put("INSERT OR REPLACE", f"failed {key}", [error.kind, str(error)])
            result = self._get(key)      # the first one, perhaps of another thread or process
        if result is not None:
            return result
        failure = self._get(f"failed {key}")
        if failure:
            raise ToolError(*failure)
        raise ConfigError(
            f"no call in {self.file} is {key[:500]}: the replayed run must have "
            "the question, model, system prompt, seed, sampling and limits of the recorded one. To "
            "add what is missing, use record: with this file")

    def _get(self, key: str):
        """The value of a key, None if it has none."""
        row = self._execute("SELECT value FROM calls WHERE key = ?", key)
        return json.loads(row[0]) if row else None

    def _put(self, insert: str, key: str, value) -> None:
        self._execute(f"{insert} INTO calls VALUES (?, ?)", key, json.dumps(value))

    def _execute(self, statement: str, *values: str) -> tuple | None:
        try:
            with self._lock:
                return self._db.execute(statement, values).fetchone()
        except sqlite3.Error as error:              # a full disk, for one
            raise ConfigError(f"{self.file} cannot be used any more: {error}") from None

    def close(self) -> None:
        with self._lock:
            self._db.close()
