"""python -m minvenus.sft --in FILE --out FILE: clean trajectories, keep the correct ones, resample
them by length, shuffle and count.

    rows of the input -> clean.clean -> is the answer correct? -> copies by length -> shuffle
    -> output, then stats.json

Clean records are held in memory. Without the shuffle, the five copies of a long trajectory would
stand in one batch. The correctness filter keeps only what is found correct: what a judge cannot
tell goes, and is counted apart.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from minvenus.agent.prompt import SYSTEM_PROMPT, read_prompt
from minvenus.agent.protocol import parse_turn
from minvenus.config import ConfigError, check
from minvenus.console import one_line_errors
from minvenus.evaluation.answers import WordGrader
from minvenus.evaluation.judge import Judge, make_grader
from minvenus.files import claimed, read_record, read_rows, replaced_file, write_json
from minvenus.flags import parse_flags
from minvenus.setting import setting
from minvenus.sft.clean import clean
from minvenus.types import UNKNOWN, Question

BAD_LINES_SHOWN = 10
COPIES = {"<=50": 1, "51-100": 2, ">100": 5}     # bucket of turns -> how often a record is written


@dataclass(frozen=True)
class CleanConfig:
    """python -m minvenus.sft: raw or clean trajectories to training data."""

    in_: str = setting("",
        "a .jsonl, .json or .parquet file, or a folder of them: docs/cleaning.md")
    out: str = setting("", "the .jsonl file to write; stats.json appears beside it")
    system_prompt: str | None = setting(None,
        "a text file or a trajectory with the prompt to use; none = our own")
    prompt_mode: Literal["template", "row"] = setting("template",
        "one prompt for all, or a record's own where it has one")
    correct: Literal["off", "exact_match", "judge"] = setting("off",
        "keep only answers that are correct by this measure")
    seed: int = setting(42, "of the shuffle")

    def __post_init__(self):
        check(self)
        if not self.in_ or Path(self.out).suffix != ".jsonl":
            raise ConfigError("both --in FILE and --out FILE.jsonl are needed")
        inputs = {file.resolve() for file in input_files(self.in_)}
        if inputs & {Path(self.out).resolve(), self.stats_path.resolve()}:
            raise ConfigError(f"{self.out} and {self.stats_path} must differ from the input")

    @property
    def stats_path(self) -> Path:
        return Path(self.out).with_name("stats.json")


def run(config: CleanConfig) -> dict:
    """Write the output and stats.json, if anything is kept, and return what stats.json has.

    The turns add up as in clean.py, the rows are source = bad_lines + the sum of drop_reasons +
    stage3_correct. What did not happen has no count."""
    out = Path(config.out)
    files = input_files(config.in_)
    counts: Counter = Counter()
    grader = make_grader("judge" if config.correct == "judge" else "em", out.parent)
    with claimed(out.parent, "cleaning"), closing(grader):
        valid = clean_records(files, config, counts)
        correct = valid
        if config.correct != "off":
            correct = correct_ones(valid, grader, counts)
        order = resampled(correct, config.seed)

        counts["rows/stage2_valid"] = len(valid)
        counts["rows/stage3_correct"] = len(correct)
        counts["rows/final_resampled"] = len(order)
        counts.update(f"turn_buckets/{bucket(record)}" for record in correct)
        names = [str(file) for file in files]
        stats = {"settings": asdict(config), "files": names, **by_group(counts)}
        if not order:
            return stats                         # the files of an earlier cleaning stay as they are
        with replaced_file(out) as new:
            with new.open("w", encoding="utf-8") as lines:
                for record in order:
                    lines.write(json.dumps(record, ensure_ascii=False) + "\n")
            config.stats_path.unlink(missing_ok=True)      # never beside data of another cleaning
        write_json(config.stats_path, stats)
    return stats


# ------------------------------------------------------------------------------------------ input


def input_files(path: str) -> list[Path]:
    """The file itself, or the files of a folder by name: Parquet, else JSONL, else JSON."""
    root = Path(path)
    if root.is_file():
        return [root]
    for pattern in ("train-*.parquet", "*.jsonl", "*.json"):
        files = sorted(root.glob(pattern))
        if files:
            return files
    raise ConfigError(f"{root} is no file and no folder with train-*.parquet, *.jsonl or "
                      "*.json files")


def read_input(file: Path) -> Iterator[tuple[int, dict | str]]:
    """(number, record) of each row as in files.read_rows; a .json file is one record."""
    if file.suffix == ".json":
        return iter([(1, read_record(file.read_bytes()))])
    return read_rows(file)


def clean_records(files: list[Path], config: CleanConfig, counts: Counter) -> list[dict]:
    """Every record of the files that can be cleaned; the others are counted by reason."""
    prompt = read_prompt(config.system_prompt) if config.system_prompt else SYSTEM_PROMPT
    records: list[dict] = []
    for file in files:
        for number, row in read_input(file):
            counts["rows/source"] += 1
            if isinstance(row, str):
                counts["rows/bad_lines"] += 1
                if counts["rows/bad_lines"] <= BAD_LINES_SHOWN:
                    print(f"{file}, line {number}: {row}", file=sys.stderr)
                continue

            record, reason, changes = clean(row, prompt, config.prompt_mode)
            counts.update(changes)
            if record and record["gt"] == UNKNOWN and config.correct != "off":
                record, reason = None, "no_true_answer"
            if record is None:
                counts[f"drop_reasons/{reason}"] += 1
            else:
                records.append(record)
    return records


# ---------------------------------------------------------------------------- filter and resample


def correct_ones(records: list[dict], grader: WordGrader | Judge, counts: Counter) -> list[dict]:
    """The records whose answer is correct; the others are counted by reason."""
    questions = [Question("", record["question"], [record["gt"]]) for record in records]
    answers = [parse_turn(record["messages"][-1]["content"]).answer for record in records]
    correct = []
    for record, grade in zip(records, grader.grade(questions, answers), strict=True):
        if grade:
            correct.append(record)
        elif grade is None:
            counts["drop_reasons/judge_could_not_tell"] += 1
        else:
            counts["drop_reasons/answer_not_correct"] += 1
    return correct


def resampled(records: list[dict], seed: int) -> list[dict]:
    """The records in the order in which they are written: copied by length, then shuffled.

    Long trajectories are rare and hard, so the model sees them more often."""
    order = []
    for record in records:
        order += [record] * COPIES[bucket(record)]
    random.Random(seed).shuffle(order)
    return order


def bucket(record: dict) -> str:
    """By turns of the agent, the answer included."""
    turns = len(record["messages"]) // 2
    if turns <= 50:
        return "<=50"
    return "51-100" if turns <= 100 else ">100"


# ------------------------------------------------------------------------------------- statistics


def by_group(counts: Counter) -> dict:
    """The counts, largest first; those named "group/name" as a dictionary under "group"."""
    groups: dict = {}
    for key, count in counts.most_common():
        group, _, name = key.partition("/")
        if name:
            groups.setdefault(group, {})[name] = count
        else:
            groups[group] = count
    return groups


def main(config: CleanConfig) -> None:
    stats = run(config)
    print(json.dumps(stats, indent=2))           # ASCII: names of tools may hold control codes
    if not stats["rows"]["final_resampled"]:
        raise ConfigError("nothing was kept, so nothing was written: the drop reasons above say "
                          "why")


if __name__ == "__main__":
    with one_line_errors("minvenus.sft"):
        main(parse_flags(CleanConfig, description="Clean trajectories for supervised training.",
                         program="python -m minvenus.sft"))
