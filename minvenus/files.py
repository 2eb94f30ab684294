"""A folder replaced as a whole, so that a crash at any moment leaves the old content or the new one, never a mix.

    1. write .NAME.new beside it, to the disk          2. rename NAME to .NAME.old
    3. rename .NAME.new to NAME                        4. delete .NAME.old

Step 3 is the moment from which the new content counts. After a crash before it the old one is still whole: under its own name, or
between 2 and 3 as .NAME.old, where `current` finds it and from where the next `replaced` puts it back. Only `replaced` renames or
deletes; reading works from a read-only disk. One process replaces a folder at a time; `claimed` keeps others out of a folder
that somebody is working in. What is in the folder is not known here.
"""

import fcntl
import hashlib
import importlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minvenus.config import ConfigError


def step_name(step: int) -> str:
    """The one name of a step in files: "after `step` updates", or the rollouts of the batch that makes that step."""
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


@contextmanager
def claimed(folder, doing: str) -> Iterator[None]:
    """`with claimed(folder, "training"):` nobody else is in it. The lock ends with the process, however that ends."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with (Path(folder) / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another process is {doing} into {folder}: wait for it, or choose another --out") from None
        yield


def current(folder) -> Path:
    """Where the last complete content of this name lies: the folder itself, except after a crash between the two renames."""
    folder = Path(folder).resolve()
    old = beside(folder, "old")
    if folder.exists() or not old.exists():
        return folder
    warnings.warn(f"replacing {folder} was interrupted; using what it held before, in {old}", stacklevel=3)
    return old


@contextmanager
def replaced(folder) -> Iterator[Path]:
    """`with replaced(folder) as new:` write into `new`; it takes the folder's place when the block ends without an error."""
    folder = Path(folder).resolve()
    new, old = beside(folder, "new"), beside(folder, "old")
    put_back(folder)
    remove(new, old)                                         # what an earlier crash left behind
    try:
        new.mkdir(parents=True)
        yield new
        for path in (*new.rglob("*"), new):
            sync(path)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)               # a full disk should not stay full
        raise
    swap(folder)
    remove(old)


@contextmanager
def replaced_file(path) -> Iterator[Path]:
    """`with replaced_file(path) as new:` write the file `new`; it gets the name `path` when the block ends without an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield new
        sync(new)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def write_text(path, text: str) -> Path:
    """Write a text file that appears under its name when it is complete."""
    with replaced_file(path) as new:
        new.write_text(text, encoding="utf-8")
    return Path(path)


def write_json(path, value) -> Path:
    """Write a JSON file that appears under its name when it is complete."""
    return write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def swap(folder: Path) -> None:
    if folder.exists():
        os.rename(folder, beside(folder, "old"))
    try:
        os.rename(beside(folder, "new"), folder)
    except BaseException:
        put_back(folder)
        raise
    sync(folder.parent)                                      # .NAME.old may go once the new name is on the disk


def put_back(folder: Path) -> None:
    """Undo step 2 when step 3 never came."""
    if not folder.exists() and beside(folder, "old").exists():
        os.rename(beside(folder, "old"), folder)


def beside(folder: Path, ending: str) -> Path:
    """Hidden and oddly named, so that no search for checkpoints takes it for one."""
    return folder.parent / f".{folder.name}.{ending}"


def remove(*folders: Path) -> None:
    for folder in folders:
        if folder.exists():
            shutil.rmtree(folder)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(value) -> str:
    """A short name for the content of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


# ------------------------------------------------------------------------------------------------------- files of records


def read_rows(path: Path) -> Iterator[tuple[int, dict | str]]:
    """(number from 1, record) of every line of a JSONL file or row of a Parquet file. A line that is no JSON object gives a
    string that says why; the caller decides whether that is fatal. Blank lines are skipped but counted."""
    if path.suffix == ".parquet":
        batches = parquet_reader(path).ParquetFile(path).iter_batches(batch_size=64)
        yield from enumerate((record for batch in batches for record in batch.to_pylist()), start=1)
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.isspace():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:    # also bytes that are not UTF-8, and endless nesting
                yield number, f"not JSON: {error}"
                continue
            yield number, record if isinstance(record, dict) else f"not a JSON object, but {type(record).__name__}"


def read_jsonl(path) -> list[dict]:
    """The complete lines of a JSONL file, none where there is no file. What follows the last line end was cut off while it was
    written."""
    if not Path(path).exists():
        return []
    try:
        return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").split("\n")[:-1]]
    except ValueError as error:
        raise ConfigError(f"{path} has a line that is not JSON ({error}): repair or remove the file") from None


def parquet_reader(path: Path) -> Any:
    """pyarrow.parquet, an optional extra that is imported only for a Parquet file."""
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigError(f"{path} is a Parquet file, and reading one needs pyarrow: pip install 'minvenus[parquet]', or use "
                          "JSONL") from None
