"""Files and folders that are written completely or not at all, locks, and files of records."""

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
    """The name of a step in files: the state after `step` updates, or the rollouts before it."""
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
    """For programs that would overwrite the settings of a training run, which it needs to go on."""
    if (Path(folder) / "checkpoints").exists():
        raise ConfigError(f"{folder} holds a training run: choose another --out")


@contextmanager
def claimed(folder, doing: str) -> Iterator[None]:
    """`with claimed(folder, "training"):` keeps other processes out until this one ends."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with (Path(folder) / ".lock").open("w") as lock:
        try:
            with naming(lock.name):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another process is {doing} into {folder}: wait for it, or use "
                              "another folder") from None
        yield


# ---------------------------------------------------------------------- complete or not at all


@contextmanager
def naming(path) -> Iterator[None]:
    """`with naming(path):` an error of the system names the file, which a full disk's does not."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replaced_file(path) -> Iterator[Path]:
    """`with replaced_file(path) as new:` write the file `new`, which is then renamed to `path`.

    After an error `path` is as it was. What a killed process left is overwritten. Only one process
    may write a file at a time.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = unfinished(path)
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
        new.write_text(text, encoding="utf-8", errors="replace")     # half a surrogate pair
    return Path(path)


def write_json(path, value) -> Path:
    return write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def replaced_folder(folder) -> Iterator[Path]:
    """`with replaced_folder(folder) as new:` write into `new`, which is then renamed to `folder`.

    After an error `folder` is as it was. An older folder of that name is deleted when the new one
    is whole: a process that dies between the two leaves .NAME.new. What a killed process left is
    deleted. Only one process may write a folder at a time: see `claimed`.
    """
    folder = Path(folder).resolve()
    new = unfinished(folder)
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir(parents=True)
        yield new
        for path in (*new.rglob("*"), new):
            sync(path)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)               # a full disk should not stay full
        raise
    if folder.exists():
        shutil.rmtree(folder)
    os.rename(new, folder)
    sync(folder.parent)


def unfinished(path: Path) -> Path:
    """Where a file or folder is written: a hidden name, which no search for checkpoints takes."""
    return path.parent / f".{path.name}.new"


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---------------------------------------------------------------------------- files of records


def digest(value) -> str:
    """A short name for the content of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def model_fingerprint(model) -> str:
    """A short name for the content of a model's folder, or of a tokenizer's file.

    The tiny model with random weights has no files, and the fingerprint of none.
    """
    root = Path(model)
    paths = sorted([*root.glob("*.safetensors"), *root.glob("*.json")])
    if root.is_file():
        paths = [root]
    contents = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256")
        contents.update(f"{path.name} {content.hexdigest()}\n".encode())
    return contents.hexdigest()[:16]


def read_rows(path: Path) -> Iterator[tuple[int, dict | str]]:
    """(number from 1, record) of every line of a JSONL file or row of a Parquet file.

    For a line that is no JSON object the record is a string that says why: the caller decides.
    Blank lines are skipped but counted.
    """
    if path.suffix == ".parquet":
        yield from enumerate(parquet_rows(path), start=1)
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.isspace():
                yield number, read_record(line)


def read_records(path) -> Iterator[tuple[str, dict]]:
    """(file and line, record) of every row, as in read_rows. A line that is no record is an error.
    """
    for number, record in read_rows(Path(path)):
        where = f"{path}, line {number}"
        if isinstance(record, str):
            raise ConfigError(f"{where}: {record}")
        yield where, record


def read_record(text: bytes) -> dict | str:
    """The JSON object in a text, or a string that says why there is none."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:            # no UTF-8; endless nesting
        return f"not JSON: {error}"
    if isinstance(record, dict):
        return record
    return f"not a JSON object, but {type(record).__name__}"


def parquet_rows(path: Path) -> Iterator[dict]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")         # an optional extra
    except ImportError:
        raise ConfigError(f"{path}: reading Parquet needs pyarrow: "
                          "pip install 'minvenus[parquet]', or use JSONL") from None
    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=64):
            yield from batch.to_pylist()
    except ValueError as error:                              # a damaged file
        raise ConfigError(f"{path}: {error}") from None


def read_jsonl(path) -> list[dict]:
    """The complete lines of a JSONL file, none if there is no file.

    Text after the last line end is left out: its line was cut off while it was written.
    """
    if not Path(path).exists():
        return []
    *lines, _ = Path(path).read_text(encoding="utf-8").split("\n")
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise ConfigError(f"{path} has a line that is not JSON ({error}): repair or remove the "
                          "file") from None
