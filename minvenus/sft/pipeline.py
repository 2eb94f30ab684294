"""A file of trajectories to a file of training data: clean, keep the correct ones, resample, shuffle, count everything.

    rows of the input -> clean.clean -> is the answer correct? -> spool (a nameless file on the disk, one line per kept record)
    spool -> resample.order -> output, under its own name only when it is complete, with stats.json

Memory does not grow with the file but for some 20 bytes a record: the shuffle moves indices, never records. The disk holds the
kept records twice for a while.

A correctness judge answers True, False or None (it could not tell). Only True keeps a trajectory: the filter promises that what
it keeps was found correct, so a failed judge never turns into a good label. Those it could not tell are counted by themselves.
"""

import json
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from minvenus.agent.prompt import SYSTEM_PROMPT, read_prompt
from minvenus.agent.protocol import parse_turn
from minvenus.evaluation.answers import exact_match, f1
from minvenus.sft.clean import clean
from minvenus.sft.config import CleanConfig
from minvenus.sft.files import appearing, input_files, read_rows, write_lines
from minvenus.sft.progress import Progress
from minvenus.sft.resample import order
from minvenus.sft.stats import Tally, report

Judge = Callable[[str, str, str], bool | None]     # (question, answer, truth) -> is the answer correct? None = could not tell


class BadLine(ValueError):
    """A line that is no record, where that is fatal."""


def run(config: CleanConfig, judge: Judge | None = None, stream=None) -> dict:
    """Write the output and the stats file, and return the stats. `judge` takes the place of the measure in the config; the
    progress goes to `stream`, standard error unless told."""
    out = Path(config.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=out.parent) as spool:
        tally = fill(spool, config, judge or measure(config), stream)
        stats = report(tally, config)
        lines = lines_at(spool, tally.offsets, order(tally.copies, config.seed if config.shuffle else None))
        with appearing(config.stats_path) as stats_file, appearing(out) as data:      # the data gets its name first
            stats_file.write_text(json.dumps(stats, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            write_lines(lines, data, out.suffix)
    return stats


def measure(config: CleanConfig) -> Judge | None:
    if config.correct == "exact_match":
        return lambda question, answer, truth: exact_match(answer, truth) == 1.0
    if config.correct == "f1":
        return lambda question, answer, truth: f1(answer, truth) >= config.f1_threshold
    return None


def fill(spool, config: CleanConfig, judge: Judge | None, stream=None) -> Tally:
    """Put every record that is kept into the spool, one line each."""
    tally, files = Tally(), input_files(config.in_)
    prompt = read_prompt(config.system_prompt) if config.system_prompt else SYSTEM_PROMPT
    sizes = [file.stat().st_size for file in files]
    bar, before, seen = Progress(sum(sizes), stream), 0, 0
    for file, size in zip(map(str, files), sizes, strict=True):
        rows = tally.per_file.setdefault(file, Counter(source=0, bad_lines=0, valid=0, kept=0))
        for row in read_rows(Path(file)):
            seen += 1
            rows["source"] += 1
            bar.update(before + row.done, seen, len(tally.offsets))
            if row.record is None:
                if config.strict:
                    raise BadLine(f"{file}, line {row.number}: {row.error}")
                tally.add_bad_line(row, file)
                continue
            record, reason, counts = clean(row.record, prompt, config.prompt_mode)
            tally.counts += counts
            rows["valid"] += record is not None
            if record is not None and judge is not None:
                reason = verdict(record, judge)
            if record is None or reason is not None:
                tally.add_dropped(row, file, str(reason))
                continue
            tally.add_kept(record, file, spool.tell(), config.resample)
            spool.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        before += size
    bar.finish(before, seen, len(tally.offsets))
    return tally


def verdict(record: dict, judge: Judge) -> str | None:
    """Why a clean record does not pass the correctness filter, or None if it does."""
    answer = parse_turn(record["messages"][-1]["content"]).answer
    assert answer is not None                      # clean() lets only answers through
    correct = judge(record["question"], answer, record["gt"])
    if correct is None:
        return "judge_could_not_tell"
    if correct not in (True, False):               # a score such as 0.5 would count as correct without a word
        raise ValueError(f"a judge answers True, False or None, got {correct!r}")
    return None if correct else "answer_not_correct"


def lines_at(spool, offsets: array, indices: array) -> Iterator[bytes]:
    for index in indices:
        spool.seek(offsets[index])
        yield spool.readline()
