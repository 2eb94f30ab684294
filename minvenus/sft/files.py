"""Trajectory files: one record at a time in, whole files or nothing out. JSONL, and Parquet with the optional extra.

What cannot be read as a record is passed on as an error with its number; nothing here decides whether that is fatal.
"""

import importlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minvenus.config import ConfigError

ROWS = 64        # records of a Parquet file in memory at a time: long trajectories are about 200 kB each


@dataclass(frozen=True)
class Row:
    """A line of a JSONL file, or a row of a Parquet file. Exactly one of record and error."""

    number: int              # from 1
    record: dict | None
    error: str | None
    done: int                # bytes of the file up to and with this row, for the progress bar


def input_files(path: str) -> list[Path]:
    """The file itself, or the train-*.parquet or else the *.jsonl files of a folder, by name."""
    root = Path(path)
    if root.is_dir():
        found = sorted(root.glob("train-*.parquet")) or sorted(root.glob("*.jsonl"))
        if not found:
            raise ConfigError(f"{root} holds no train-*.parquet and no *.jsonl file")
        return found
    if not root.is_file():
        raise ConfigError(f"{root} does not exist")
    return [root]


def read_rows(path: Path) -> Iterator[Row]:
    return parquet_rows(path) if path.suffix == ".parquet" else jsonl_rows(path)


def jsonl_rows(path: Path) -> Iterator[Row]:
    """Blank lines are skipped but keep their number."""
    done = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            done += len(line)
            if line.isspace():
                continue
            try:
                record, error = json.loads(line), None
            except (ValueError, RecursionError) as problem:   # also bytes that are not UTF-8, and nesting without end
                record, error = None, f"not JSON: {problem}"
            if error is None and not isinstance(record, dict):
                record, error = None, f"a record is a JSON object, this is {type(record).__name__}"
            yield Row(number, record, error, done)


def parquet_rows(path: Path) -> Iterator[Row]:
    parquet, size, number = optional("pyarrow.parquet", path), path.stat().st_size, 0
    file = parquet.ParquetFile(path)
    for batch in file.iter_batches(batch_size=ROWS):
        for record in batch.to_pylist():
            number += 1
            yield Row(number, record, None, size * number // file.metadata.num_rows)


def optional(module: str, path: Path) -> Any:
    """A module of the optional extra, imported only when a path needs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError(f"{path} is a Parquet file, and reading or writing one needs pyarrow: "
                          "pip install 'minvenus[parquet]', or use JSONL") from None


# ----------------------------------------------------------------------------------------------------------------- output


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; it becomes `path` when the block ends without an error, and is gone otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield beside
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_lines(lines: Iterator[bytes], path: Path, kind: str) -> None:
    """Write JSON lines, each with its newline, as JSONL or as Parquet (kind = the suffix of the final name)."""
    if kind == ".parquet":
        write_parquet(lines, path)
    else:
        with path.open("wb") as out:
            out.writelines(lines)


def write_parquet(lines: Iterator[bytes], path: Path) -> None:
    arrow, parquet = optional("pyarrow", path), optional("pyarrow.parquet", path)
    message = arrow.struct([("role", arrow.string()), ("content", arrow.string())])
    schema = arrow.schema([("question", arrow.string()), ("messages", arrow.list_(message)), ("gt", arrow.string())])
    with parquet.ParquetWriter(path, schema) as out:
        batch: list[dict] = []
        for line in lines:
            batch.append(json.loads(line))
            if len(batch) == ROWS:
                out.write_table(arrow.Table.from_pylist(batch, schema=schema))
                batch = []
        if batch:
            out.write_table(arrow.Table.from_pylist(batch, schema=schema))
