"""python -m minvenus.sft --in FILE --out FILE: clean trajectories, resample them by length, shuffle, and say what happened."""

import sys

from minvenus.config import ConfigError
from minvenus.flags import parse_flags
from minvenus.sft.config import CleanConfig
from minvenus.sft.pipeline import BadLine, run

SHOWN = 10      # bad lines and drop reasons in the terminal; all of them are in stats.json


def main(argv: list[str] | None = None) -> int:
    """0: written. 1: nothing was kept, a bad line with --strict, or a file that cannot be read or written. 130: interrupted."""
    config = parse_flags(CleanConfig, argv, description="Clean trajectories for supervised training.")
    try:
        stats = run(config)
    except KeyboardInterrupt:
        print(f"\ninterrupted: {config.out} was not written", file=sys.stderr)
        return 130
    except (BadLine, ConfigError, OSError) as error:
        print(f"{error}\n{config.out} was not written", file=sys.stderr)
        return 1
    show_bad_lines(stats)
    print(table(stats))
    if not stats["rows"]["final_resampled"]:
        print("nothing was kept: the drop reasons above say why", file=sys.stderr)
        return 1
    return 0


def show_bad_lines(stats: dict) -> None:
    for bad in stats["bad_lines"][:SHOWN]:
        print(f"{bad['file']}, line {bad['line']}: {bad['error']}", file=sys.stderr)
    more = stats["rows"]["bad_lines"] - SHOWN
    if more > 0:
        print(f"and {more:,} more lines that are no records, see {stats['artifacts']['stats']}", file=sys.stderr)


def table(stats: dict) -> str:
    rows, buckets, share = stats["rows"], stats["turn_buckets"], stats["long_share"]
    dropped = list(stats["drop_reasons"].items())
    lines = [("rows in the input", rows["source"]), ("  lines that are no record", rows["bad_lines"])]
    lines += [(f"  dropped: {name}", count) for name, count in dropped[:SHOWN]]
    if len(dropped) > SHOWN:
        lines.append((f"  dropped: {len(dropped) - SHOWN} other reasons", sum(count for _, count in dropped[SHOWN:])))
    lines += [("trajectories kept", rows["stage3_correct"])]
    lines += [(f"turns removed, tool {name}", count) for name, count in stats["pruned_tool_name_counts"].items()]
    lines += [("turns removed, unreadable", stats["unreadable_tool_turns_removed"]),
              ("turns removed, duplicate call", stats["duplicate_tool_turns_removed"]),
              ("final answers repaired", stats["answers_repaired"])]
    lines += [(f"calls of {name} left", count) for name, count in stats["tools_after_cleaning"].items()]
    lines += [(f"{name} turns", f"{count:,} -> {buckets['resampled'][name]:,}") for name, count in buckets["original"].items()]
    if share["original"] is not None:
        lines.append(("share of > 100 turns", f"{share['original']:.2%} -> {share['resampled']:.2%}"))
    lines.append(("instances written", rows["final_resampled"]))
    width = max(len(name) for name, _ in lines) + 2
    body = "\n".join(f"{name:<{width}}{value if isinstance(value, str) else format(value, ','):>18}" for name, value in lines)
    return f"{body}\n\n{stats['artifacts']['data']} and {stats['artifacts']['stats']}"


if __name__ == "__main__":
    sys.exit(main())
