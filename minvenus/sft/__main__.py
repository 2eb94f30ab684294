"""python -m minvenus.sft --in FILE --out FILE: clean trajectories, keep the correct ones, resample by length,
shuffle, count.

    rows of the input -> clean.clean -> spool (a nameless file on the disk, one line per clean record)
    spool -> is the answer correct? -> copies by length -> shuffle -> output, then stats.json

Records stay on the disk: the shuffle moves their places in the spool. Without a shuffle, the five copies of a long
trajectory would stand in one batch. The correctness filter keeps only what was found correct: what a judge could not
tell goes, and is counted apart.
"""

import json
import random
import sys
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from minvenus.agent.prompt import SYSTEM_PROMPT, read_prompt
from minvenus.agent.protocol import parse_turn
from minvenus.config import ConfigError, check
from minvenus.console import one_line_errors
from minvenus.evaluation.judge import Judge, WordGrader, make_grader
from minvenus.files import claimed, read_rows, replaced_file, write_json
from minvenus.flags import parse_flags
from minvenus.sft.clean import COPIES, bucket, clean, copies
from minvenus.types import UNKNOWN, Question

SHOWN = 10                   # bad lines in the terminal
TURN_COUNTS = ("turns_in", "turns_kept", "turns_dropped",
               "unreadable_tool_turns_removed", "unreadable_tool_response_turns_removed",
               "pruned_tool_turns_removed", "pruned_tool_response_turns_removed",
               "duplicate_tool_turns_removed", "duplicate_tool_response_turns_removed", "messages_repaired")


@dataclass(frozen=True)
class CleanConfig:
    """python -m minvenus.sft: raw or clean trajectories to training data."""

    in_: str = ""                                  # a .jsonl or .parquet file, or a folder of them: docs/cleaning.md
    out: str = ""                                  # the .jsonl file to write; stats.json appears beside it
    system_prompt: str | None = None               # a text file or a trajectory with the prompt to use; none = our own
    prompt_mode: Literal["template", "row"] = "template"       # one prompt for all, or a record's own where it has one
    correct: Literal["off", "exact_match", "judge"] = "off"    # keep only answers that are correct by this measure
    resample: bool = True                          # write trajectories of 51 to 100 turns twice, longer ones five times
    seed: int = 42                                 # of the shuffle

    def __post_init__(self):
        check(self)
        if not self.in_ or Path(self.out).suffix != ".jsonl":
            raise ConfigError("both --in FILE and --out FILE.jsonl are needed")
        if {Path(self.out).resolve(), self.stats_path.resolve()} & {file.resolve() for file in input_files(self.in_)}:
            raise ConfigError(f"{self.out} and {self.stats_path} must differ from the input")

    @property
    def stats_path(self) -> Path:
        return Path(self.out).with_name("stats.json")


def input_files(path: str) -> list[Path]:
    """The file itself, or the train-*.parquet or else the *.jsonl files of a folder, by name."""
    root = Path(path)
    if root.is_file():
        return [root]
    found = sorted(root.glob("train-*.parquet")) or sorted(root.glob("*.jsonl"))
    if not found:
        raise ConfigError(f"{root} is no file and no folder with train-*.parquet or *.jsonl files")
    return found


class Spooled(NamedTuple):
    """A clean record in the spool."""

    offset: int
    turns: int
    answered: tuple[Question, str | None]          # to grade


def run(config: CleanConfig) -> dict:
    """Write the output and stats.json, if anything is kept, and return what stats.json has. The turns add up as in
    clean.py, the rows are source = bad_lines + the sum of drop_reasons + stage3_correct."""
    out = Path(config.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    files, counts = input_files(config.in_), Counter[str]()
    grader = make_grader("judge" if config.correct == "judge" else "em", out.parent)
    with claimed(out.parent, "cleaning"), closing(grader), tempfile.TemporaryFile(dir=out.parent) as spool:
        valid = fill(spool, files, config, counts)
        kept = valid if config.correct == "off" else correct_ones(valid, grader, counts)
        order = []
        for record in kept:
            order += [record] * (copies(record.turns) if config.resample else 1)
        random.Random(config.seed).shuffle(order)
        stats = {
            "settings": asdict(config),
            "files": list(map(str, files)),
            "rows": {"source": counts["source"], "bad_lines": counts["bad_lines"], "stage2_valid": len(valid),
                     "stage3_correct": len(kept), "final_resampled": len(order)},
            **{name: counts[name] for name in TURN_COUNTS},
            **{group: by_name(counts, group) for group in ("drop_reasons", "pruned_tool_name_counts",
                                                           "tools_after_cleaning")},
            "turn_buckets": {"original": by_bucket(kept), "resampled": by_bucket(order)},
        }
        if not order:
            return stats                                     # files of an earlier cleaning stay as they are
        with replaced_file(out) as data, data.open("wb") as lines:
            for record in order:
                spool.seek(record.offset)
                lines.write(spool.readline())
            config.stats_path.unlink(missing_ok=True)        # never beside data that it does not describe
        write_json(config.stats_path, stats)
    return stats


def fill(spool, files: list[Path], config: CleanConfig, counts: Counter) -> list[Spooled]:
    """Put every clean record into the spool, one line each."""
    valid: list[Spooled] = []
    prompt = read_prompt(config.system_prompt) if config.system_prompt else SYSTEM_PROMPT
    for file in files:
        for number, row in read_rows(file):
            counts["source"] += 1
            if isinstance(row, str):
                counts["bad_lines"] += 1
                if counts["bad_lines"] <= SHOWN:
                    print(f"{file}, line {number}: {row}", file=sys.stderr)
                continue
            record, reason, changes = clean(row, prompt, config.prompt_mode)
            counts.update(changes)
            if record and record["gt"] == UNKNOWN and config.correct != "off":
                record, reason = None, "no_true_answer"
            if record is None:
                counts[f"drop_reasons/{reason}"] += 1
                continue
            question = Question(str(len(valid)), record["question"], [record["gt"]])
            answer = parse_turn(record["messages"][-1]["content"]).answer
            valid.append(Spooled(spool.tell(), len(record["messages"]) // 2, (question, answer)))
            spool.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    return valid


def correct_ones(valid: list[Spooled], grader: WordGrader | Judge, counts: Counter) -> list[Spooled]:
    """The records that were found correct; the others are counted."""
    kept = []
    questions = [record.answered[0] for record in valid]
    grades = grader.grade(questions, [record.answered[1] for record in valid])
    for record, grade in zip(valid, grades, strict=True):
        if grade:
            kept.append(record)
        else:
            reason = "judge_could_not_tell" if grade is None else "answer_not_correct"
            counts[f"drop_reasons/{reason}"] += 1
    return kept


def by_name(counts: Counter, group: str) -> dict[str, int]:
    return {name.split("/", 1)[1]: count for name, count in counts.most_common() if name.startswith(group + "/")}


def by_bucket(records: list[Spooled]) -> dict[str, int]:
    return dict.fromkeys(COPIES, 0) | Counter(bucket(record.turns) for record in records)


def main(config: CleanConfig) -> None:
    stats = run(config)
    print(json.dumps(stats, indent=2))                       # ASCII: names of tools may hold control codes
    if not stats["rows"]["final_resampled"]:
        raise ConfigError("nothing was kept, so nothing was written: the drop reasons above say why")


if __name__ == "__main__":
    with one_line_errors("minvenus.sft"):
        main(parse_flags(CleanConfig, description="Clean trajectories for supervised training."))
