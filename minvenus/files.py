"""Files and folders: written completely or not at all, locks, and files of records."""

import fcntl
import hashlib
import importlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minvenus.config import ConfigError


def step_name(step: int) -> str:
    """The name of a step in files: the state after `step` updates, or the rollouts of the batch that makes it."""
    return f"step-{step:08d}"


def latest_checkpoint(run) -> Path | None:
    """The newest complete checkpoint of a run, or None if it has none yet."""
    pointer = Path(run) / "latest"
    if not pointer.is_file():
        return None
    folder = Path(run) / "checkpoints" / pointer.read_text().strip()
    if not (folder / "state.json").is_file():
        raise ConfigError(f"{pointer} names {folder}, which is not a checkpoint")
    return folder


def refuse_training_run(folder) -> None:
    """For programs whose settings would take the place of a training run's, which could not go on without them."""
    if (Path(folder) / "checkpoints").exists():
        raise ConfigError(f"{folder} holds a training run: choose another --out")


@contextmanager
def claimed(folder, doing: str) -> Iterator[None]:
    """`with claimed(folder, "training"):` keeps other processes out. The lock ends with the process."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with (Path(folder) / ".lock").open("w") as lock:
        try:
            with naming(lock.name):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another process is {doing} into {folder}: wait for it, or use another folder") from None
        yield


# ---------------------------------------------------------------------------------------- complete or not at all


@contextmanager
def naming(path) -> Iterator[None]:
    """`with naming(path):` the error of a full disk names the file, which the system's own does not."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replaced_file(path) -> Iterator[Path]:
    """`with replaced_file(path) as new:` write the file `new`; without an error it is renamed to `path`. What a killed
    process left is overwritten. Only one process may write a file at a time."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = beside(path, "new")
    try:
        with naming(path):
            yield new
            sync(new)
            new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def write_text(path, text: str) -> Path:
    """Write a text file that appears under its name when it is complete."""
    with replaced_file(path) as new:
        new.write_text(text, encoding="utf-8", errors="replace")           # half a surrogate pair has no UTF-8
    return Path(path)


def write_json(path, value) -> Path:
    return write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def replaced(folder) -> Iterator[Path]:
    """`with replaced(folder) as new:` write into `new`; without an error it takes the folder's place. A crash at any
    moment leaves the old content or the new one, never a mix:

        1. write .NAME.new beside it, to the disk          2. rename NAME to .NAME.old
        3. rename .NAME.new to NAME                        4. delete .NAME.old

    Between 2 and 3 `current` finds the old content, and the next `replaced` puts it back. Only one process may replace
    a folder at a time: see `claimed`.
    """
    folder = Path(folder).resolve()
    new, old = beside(folder, "new"), beside(folder, "old")
    try:
        if current(folder) == old:
            os.rename(old, folder)
        for left_by_a_crash in (new, old):
            if left_by_a_crash.exists():
                shutil.rmtree(left_by_a_crash)
        new.mkdir(parents=True)
        yield new
        for path in (*new.rglob("*"), new):
            sync(path)
        if folder.exists():
            os.rename(folder, old)
        os.rename(new, folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)               # a full disk should not stay full
        if current(folder) == old:
            os.rename(old, folder)
        raise
    sync(folder.parent)                                      # the old content may go once the new name is on the disk
    if old.exists():
        shutil.rmtree(old)


def current(folder) -> Path:
    """Where the last complete content of a folder is. Reading renames nothing, so it works on a read-only disk."""
    folder = Path(folder).resolve()
    old = beside(folder, "old")
    return old if old.exists() and not folder.exists() else folder


def beside(folder: Path, ending: str) -> Path:
    """A hidden name, so that no search for checkpoints takes it for one."""
    return folder.parent / f".{folder.name}.{ending}"


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ------------------------------------------------------------------------------------------------- files of records


def digest(value) -> str:
    """A short name for the content of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def read_rows(path: Path) -> Iterator[tuple[int, dict | str]]:
    """(number from 1, record) of every line of a JSONL file or row of a Parquet file. For a line that is no JSON object
    the record is a string that says why: the caller decides. Blank lines are skipped but counted."""
    if path.suffix == ".parquet":
        try:
            parquet = importlib.import_module("pyarrow.parquet")         # an optional extra
        except ImportError:
            raise ConfigError(f"{path}: reading Parquet needs pyarrow: pip install 'minvenus[parquet]', or use JSONL"
                              ) from None
        try:
            batches = parquet.ParquetFile(path).iter_batches(batch_size=64)
            yield from enumerate((record for batch in batches for record in batch.to_pylist()), start=1)
        except ValueError as error:                              # a damaged file
            raise ConfigError(f"{path}: {error}") from None
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.isspace():
                yield number, read_record(line)


def read_record(text: bytes) -> dict | str:
    """The JSON object in a text, or a string that says why there is none."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:            # also bytes that are not UTF-8, and endless nesting
        return f"not JSON: {error}"
    return record if isinstance(record, dict) else f"not a JSON object, but {type(record).__name__}"


def read_jsonl(path) -> list[dict]:
    """The complete lines of a JSONL file, none if there is no file. Text after the last line end is left out: its line
    was cut off while it was written."""
    if not Path(path).exists():
        return []
    try:
        return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").split("\n")[:-1]]
    except ValueError as error:
        raise ConfigError(f"{path} has a line that is not JSON ({error}): repair or remove the file") from None
