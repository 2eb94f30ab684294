"""What happened to every row and every turn, and the stats.json that says so (the fields of the released script, and a few more).

    rows    source = bad lines + dropped (each with a reason) + kept
    turns   in = unreadable + pruned + duplicate + dropped with their record + kept
"""

from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from minvenus.sft import resample
from minvenus.sft.clean import ALLOWED_TOOLS
from minvenus.sft.config import CleanConfig
from minvenus.sft.files import Row

REMOVED = [f"{why}_{what}_removed" for why in ("unreadable", "pruned", "duplicate")
           for what in ("tool_turns", "tool_response_turns")]
LISTED = 1000        # bad lines and dropped rows that are listed one by one; all of them are counted


@dataclass
class Tally:
    """Everything that is counted while rows pass by. Its size depends on the number of kept records by nine bytes each only."""

    counts: Counter = field(default_factory=Counter)                 # of clean(), over all rows
    drop_reasons: Counter = field(default_factory=Counter)
    buckets: Counter = field(default_factory=Counter)                # bucket of turns -> kept records
    per_file: dict[str, Counter] = field(default_factory=dict)
    bad_lines: list[dict] = field(default_factory=list)
    dropped: list[dict] = field(default_factory=list)
    offsets: array = field(default_factory=lambda: array("q"))       # where every kept record stands in the spool
    copies: array = field(default_factory=lambda: array("b"))        # how often each is to be written

    def add_bad_line(self, row: Row, file: str) -> None:
        self.per_file[file]["bad_lines"] += 1
        if len(self.bad_lines) < LISTED:
            self.bad_lines.append({"file": file, "line": row.number, "error": row.error})

    def add_dropped(self, row: Row, file: str, reason: str) -> None:
        self.drop_reasons[reason] += 1
        if len(self.dropped) < LISTED:
            self.dropped.append({"file": file, "line": row.number, "reason": reason})

    def add_kept(self, record: dict, file: str, offset: int, repeat: bool) -> None:
        turns = resample.count_turns(record["messages"])
        self.per_file[file]["kept"] += 1
        self.buckets[resample.bucket(turns)] += 1
        self.offsets.append(offset)
        self.copies.append(resample.copies(turns) if repeat else 1)

    def total(self, name: str) -> int:
        return sum(rows[name] for rows in self.per_file.values())


def report(tally: Tally, config: CleanConfig) -> dict:
    """The content of stats.json."""
    counts = tally.counts
    original = {name: tally.buckets[name] for name in resample.POLICY}
    after = resample.resampled(original) if config.resample else original
    return {
        "input": config.in_, "files": list(tally.per_file), "output_dir": str(Path(config.out).parent),
        "system_prompt_mode": config.prompt_mode, "allowed_tools": list(ALLOWED_TOOLS),
        "turn_formula": "(len(messages) - 1) // 2", "resample_policy": resample.POLICY if config.resample else None,
        "shuffle_seed": config.seed if config.shuffle else None, "correct": config.correct,
        "rows": {"source": tally.total("source"), "bad_lines": tally.total("bad_lines"),
                 "stage1_normalized": counts["rows_normalized"], "stage2_valid": tally.total("valid"),
                 "stage3_correct": tally.total("kept"), "final_resampled": sum(tally.copies)},
        "turns": {name: counts[name] for name in ("turns_in", "turns_kept", "turns_dropped")},
        **{name: counts[name] for name in REMOVED}, "answers_repaired": counts["answers_repaired"],
        "wrappers_tidied": counts["wrappers_tidied"],
        "pruned_tool_name_counts": by_name(counts, "pruned_tool_name_counts"),
        "tools_after_cleaning": by_name(counts, "tools_after_cleaning"),
        "drop_reasons": dict(tally.drop_reasons.most_common()),
        "turn_buckets": {"original": original, "resampled": after},
        "long_share": {"original": resample.long_share(original), "resampled": resample.long_share(after)},
        "multiplier_distribution": {str(factor): count for factor, count in sorted(Counter(tally.copies).items())},
        "per_file": {name: dict(rows) for name, rows in tally.per_file.items()},
        "bad_lines": tally.bad_lines, "dropped": tally.dropped,
        "artifacts": {"data": config.out, "stats": str(config.stats_path)},
    }


def by_name(counts: Counter, group: str) -> dict[str, int]:
    return {name.split("/", 1)[1]: count for name, count in counts.most_common() if name.startswith(group + "/")}
