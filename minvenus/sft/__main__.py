"""python -m minvenus.sft --in FILE --out FILE: clean trajectories, keep the correct ones, resample by length,
shuffle, count.

    rows of the input -> clean.clean -> spool (a nameless file on the disk, one line per clean record)
    spool -> is the answer correct? -> copies by length -> shuffle -> output, then stats.json

Memory grows by some 20 bytes a record (and by its answer where answers are checked): the shuffle moves line numbers,
not records. Without a shuffle, the five copies of a long trajectory would stand in one batch.

The correctness filter promises that what it keeps was found correct: a judge that could not tell keeps nothing, and
those records are counted apart.
"""

import json
import random
import sys
import tempfile
from array import array
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from minvenus.agent.prompt import SYSTEM_PROMPT, read_prompt
from minvenus.agent.protocol import parse_turn
from minvenus.config import ConfigError, one_of
from minvenus.console import table
from minvenus.evaluation.judge import GradeItem, Grader, Judge, JudgeUnreliable, Verdict
from minvenus.files import parquet_reader, read_rows, replaced_file, write_json
from minvenus.flags import parse_flags
from minvenus.sft.clean import COPIES, bucket, clean, copies
from minvenus.sft.turns import ALLOWED_TOOLS
from minvenus.types import Question

CORRECT = ("off", "exact_match", "judge")
SHOWN = 10                   # bad lines in the terminal
PROGRESS_ROWS = 1000         # rows between two lines of progress


@dataclass(frozen=True)
class CleanConfig:
    """python -m minvenus.sft: raw or clean trajectories to training data."""

    in_: str = ""                                  # a .jsonl or .parquet file, or a folder of them
    out: str = ""                                  # the .jsonl file to write; stats.json appears beside it
    system_prompt: str | None = None               # a text file or a trajectory with the prompt to use; none = our own
    prompt_mode: Literal["template", "row"] = "template"       # one prompt for all, or a record's own where it has one
    correct: Literal["off", "exact_match", "judge"] = "off"    # keep only answers that are correct by this measure
    resample: bool = True                          # write trajectories of 51 to 100 turns twice, longer ones five times
    shuffle: bool = True                           # shuffle after resampling; otherwise the order of the input
    seed: int = 42                                 # of the shuffle

    def __post_init__(self):
        if not self.in_ or not self.out:
            raise ConfigError("both --in FILE and --out FILE are needed")
        one_of("prompt_mode", self.prompt_mode, ("template", "row"))
        one_of("correct", self.correct, CORRECT)
        one_of("the ending of --out", Path(self.out).suffix, (".jsonl",))
        files = input_files(self.in_)
        if {Path(self.out).resolve(), self.stats_path.resolve()} & {file.resolve() for file in files}:
            raise ConfigError(f"{self.out} and {self.stats_path} must differ from the input")
        for file in files:
            if file.suffix == ".parquet":
                parquet_reader(file)               # a missing pyarrow is refused now, not after an hour of cleaning

    @property
    def stats_path(self) -> Path:
        return Path(self.out).with_name("stats.json")


def input_files(path: str) -> list[Path]:
    """The file itself, or the train-*.parquet or else the *.jsonl files of a folder, by name."""
    root = Path(path)
    if not root.is_dir():
        if not root.is_file():
            raise ConfigError(f"{root} does not exist")
        return [root]
    found = sorted(root.glob("train-*.parquet")) or sorted(root.glob("*.jsonl"))
    if not found:
        raise ConfigError(f"{root} holds no train-*.parquet and no *.jsonl file")
    return found


@dataclass
class Tally:
    """What is counted and remembered while rows pass by."""

    rows: Counter = field(default_factory=Counter)                   # source, bad_lines
    counts: Counter = field(default_factory=Counter)                 # of clean(), over all rows
    drop_reasons: Counter = field(default_factory=Counter)
    offsets: array = field(default_factory=lambda: array("q"))       # of every clean record in the spool
    turns: array = field(default_factory=lambda: array("l"))         # of every clean record
    answers: list[GradeItem] = field(default_factory=list)           # of every clean record, if they are checked


def run(config: CleanConfig) -> dict:
    """Write the output and stats.json, and return the content of stats.json."""
    out = Path(config.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as exits:
        judge = None
        if config.correct == "judge":                        # its verdicts stay for the next try, beside the output
            judge = exits.enter_context(closing(Judge(out.with_name("judge.sqlite"))))
        spool = exits.enter_context(tempfile.TemporaryFile(dir=out.parent))
        tally = fill(spool, config)
        verdicts = Grader(judge=judge).grade_all(dict(enumerate(tally.answers)))
        kept = [i for i in range(len(tally.offsets)) if keeps(verdicts.get(i), tally.drop_reasons)]
        order = array("q")
        for i in kept:
            order.extend([i] * (copies(tally.turns[i]) if config.resample else 1))
        if config.shuffle:
            random.Random(config.seed).shuffle(order)
        stats = report(tally, kept, len(order), config)
        with replaced_file(out) as data, data.open("wb") as lines:
            for i in order:
                spool.seek(tally.offsets[i])
                lines.write(spool.readline())
            config.stats_path.unlink(missing_ok=True)        # never beside data that it does not describe
    write_json(config.stats_path, stats)
    return stats


def fill(spool, config: CleanConfig) -> Tally:
    """Put every clean record into the spool, one line each."""
    tally = Tally()
    prompt = read_prompt(config.system_prompt) if config.system_prompt else SYSTEM_PROMPT
    for file in input_files(config.in_):
        for number, row in read_rows(file):
            tally.rows["source"] += 1
            if tally.rows["source"] % PROGRESS_ROWS == 0:
                print(f"{tally.rows['source']:,} rows, {len(tally.offsets):,} clean", file=sys.stderr, flush=True)
            if isinstance(row, str):
                tally.rows["bad_lines"] += 1
                if tally.rows["bad_lines"] <= SHOWN:
                    print(f"{file}, line {number}: {row}", file=sys.stderr)
                continue
            record, reason, counts = clean(row, prompt, config.prompt_mode)
            tally.counts += counts
            if record is None:
                tally.drop_reasons[str(reason)] += 1
                continue
            tally.offsets.append(spool.tell())
            tally.turns.append(len(record["messages"]) // 2)
            if config.correct != "off":
                question = Question(str(len(tally.answers)), record["question"], [record["gt"]])
                tally.answers.append(GradeItem(question, parse_turn(record["messages"][-1]["content"]).answer))
            spool.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    return tally


def keeps(verdict: Verdict | None, drop_reasons: Counter) -> bool:
    """Whether a record stays: answers are not checked, or it was found correct. The others are counted."""
    if verdict is None or verdict.correct:
        return True
    drop_reasons["judge_could_not_tell" if verdict.correct is None else "answer_not_correct"] += 1
    return False


# -------------------------------------------------------------------------------------------------------- what happened


def report(tally: Tally, kept: list[int], written: int, config: CleanConfig) -> dict:
    """The content of stats.json: the fields of the released script but the tables per file, and a few more.

    rows    source = bad lines + dropped (each with a reason) + kept
    turns   in = unreadable + pruned + duplicate + dropped with their record + kept
    """
    counts = tally.counts
    buckets = Counter(bucket(tally.turns[i]) for i in kept)
    original = {name: buckets[name] for name in COPIES}
    resampled = {name: buckets[name] * (factor if config.resample else 1) for name, factor in COPIES.items()}
    removed = [f"{why}_{what}_removed" for why in ("unreadable", "pruned", "duplicate")
               for what in ("tool_turns", "tool_response_turns")]
    repaired = ["calls_repaired", "answers_repaired", "wrappers_repaired"]
    return {
        "input": config.in_, "files": [str(file) for file in input_files(config.in_)],
        "output_dir": str(Path(config.out).parent), "system_prompt_mode": config.prompt_mode,
        "allowed_tools": list(ALLOWED_TOOLS), "turn_formula": "(len(messages) - 1) // 2",
        "resample_policy": COPIES if config.resample else None,
        "shuffle_seed": config.seed if config.shuffle else None, "correct": config.correct,
        "rows": {"source": tally.rows["source"], "bad_lines": tally.rows["bad_lines"],
                 "stage1_normalized": counts["rows_normalized"], "stage2_valid": len(tally.offsets),
                 "stage3_correct": len(kept), "final_resampled": written},
        "turns": {name: counts[name] for name in ("turns_in", "turns_kept", "turns_dropped")},
        **{name: counts[name] for name in removed + repaired},
        "pruned_tool_name_counts": by_name(counts, "pruned_tool_name_counts"),
        "tools_after_cleaning": by_name(counts, "tools_after_cleaning"),
        "drop_reasons": dict(tally.drop_reasons.most_common()),
        "turn_buckets": {"original": original, "resampled": resampled},
        "long_share": {"original": long_share(original), "resampled": long_share(resampled)},
        "multiplier_distribution": {str(factor): original[name] for name, factor in COPIES.items()} if config.resample
                                   else {"1": len(kept)},
        "artifacts": {"data": config.out, "stats": str(config.stats_path)},
    }


def by_name(counts: Counter, group: str) -> dict[str, int]:
    return {name.split("/", 1)[1]: count for name, count in counts.most_common() if name.startswith(group + "/")}


def long_share(buckets: dict[str, int]) -> float | None:
    """The share of trajectories with more than 100 turns; None if there are no trajectories."""
    total = sum(buckets.values())
    return buckets[">100"] / total if total else None


def shown(stats: dict) -> str:
    """The counts of stats.json that tell most, as a table."""
    changes = {name: count for name, count in stats.items() if name.endswith(("_removed", "_repaired")) and count}
    parts = {"rows": stats["rows"], "dropped": stats["drop_reasons"], "turns": stats["turns"] | changes,
             "calls": stats["tools_after_cleaning"], "kept, by turns": stats["turn_buckets"]["original"],
             "written, by turns": stats["turn_buckets"]["resampled"]}
    lines = []
    for part, counts in parts.items():
        lines += [[f"{part}: {name}", f"{count:,}"] for name, count in counts.items()]
    return table(lines)


def main(argv: list[str] | None = None) -> int:
    """0: written. 1: nothing was kept, or a file cannot be read or written. 130: interrupted."""
    config = parse_flags(CleanConfig, argv, description="Clean trajectories for supervised training.")
    try:
        stats = run(config)
    except KeyboardInterrupt:
        print(f"\ninterrupted before {config.stats_path} was written", file=sys.stderr)
        return 130
    except (ConfigError, JudgeUnreliable, OSError) as error:
        print(f"{error}\nstopped before {config.stats_path} was written", file=sys.stderr)
        return 1
    print(f"{shown(stats)}\n\n{config.out} and {config.stats_path}")
    if not stats["rows"]["final_resampled"]:
        print("nothing was kept: the drop reasons above say why", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
