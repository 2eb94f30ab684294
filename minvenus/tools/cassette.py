"""Results of live calls in one SQLite file: recorded once, replayed exactly and without a network.

    calls(key, text)      key = base.call_key(name, arguments) of one query or one page, text = its result as JSON

Failures are not recorded: a timeout must not become what a page says for ever. A call that is already in the file
is answered from it while recording, too, so the recorded run sees what a replay will see. In a replay a call that
is not in the file stops the run: showing it to the model as a web error would change the experiment without a word.

Every row is one transaction, so a killed process leaves whole rows only. Threads share one connection under a
lock; several processes may record into the same file. The judge keeps its verdicts in such a file.
"""

import json
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from minvenus.config import ConfigError
from minvenus.tools.base import call_key

BUSY_SECONDS = 30.0                   # wait for another process that writes


class MissingRecording(ConfigError):
    """A replayed run made a call that the file does not have."""


class Cassette:
    """One file, either to record into or, with record=False, to replay from."""

    def __init__(self, file, record: bool = True):
        self.file, self.record = Path(file), record
        self._lock = threading.Lock()
        mode = "rwc" if record else "rw"        # not ro: only a writer can roll back the journal of a killed recording
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
            raise ConfigError(f"{self.file} is no recording of tools ({error}); record:FILE makes one") from None

    def get(self, key: str) -> str | None:
        with self._lock:
            row = self._db.execute("SELECT text FROM calls WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def put(self, key: str, text: str) -> str:
        """Keep the first text of a key. Returns the one that is kept: another thread or process may have been first."""
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO calls VALUES (?, ?)", (key, text))
        return self.get(key) or text

    def fetch(self, name: str, arguments: dict, call: Callable[[], list]) -> list:
        """The recorded result, else that of `call()`, which is recorded unless it is empty or raises."""
        key = call_key(name, arguments)
        text = self.get(key)
        if text is None:
            if not self.record:
                raise MissingRecording(f"{self.file} has no recording of {key[:500]}: the recorded run had another "
                                       "seed, prompt or model, or the call failed then. Record the run again")
            result = call()
            if not result:
                return result
            text = self.put(key, json.dumps(result))
        return json.loads(text)

    def close(self) -> None:
        with self._lock:
            self._db.close()
