"""Timing for all benchmarks: sides that take turns, median ratios, and a table of targets.

A busy machine slows both sides of a round alike: read the ratio, not the milliseconds. The peers
(transformers, trl) are imported beside our own code, so their environment runs the benchmark;
without one our side is measured alone:

    MINVENUS_TRANSFORMERS_PYTHON   python of the environment with transformers and trl
"""

import argparse
import os
import subprocess
import sys
import time
from statistics import median

import torch

from benchmarks.vllm_peer import Seconds


def main(doc: str, parts: dict) -> None:
    """Run the parts that the command line names, each with a Timing, where the peers are."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, help="parts to run")
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many rounds counts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu-time", action="store_true", help="count processor time, not time")
    parser.add_argument("--against", metavar="PATH", help="another checkout of this project")
    options = parser.parse_args()

    peer = os.environ.pop("MINVENUS_TRANSFORMERS_PYTHON", None)
    if peer:
        module = sys.modules["__main__"].__spec__.name
        sys.exit(subprocess.run([peer, "-m", module, *sys.argv[1:]]).returncode)
    timing = Timing(options)
    for name in options.only:
        parts[name](timing)
    timing.summary()


def check_tokens(side: str, count: int, expected: int) -> None:
    """A side that does less than its work would look fast."""
    if count != expected:
        raise RuntimeError(f"{side} had {count} tokens, not {expected}: its time says nothing")


class Timing:
    """Measures, prints, and keeps what has a target."""

    def __init__(self, options: argparse.Namespace):
        self.rounds, self.threads, self.against = options.rounds, options.threads, options.against
        self.clock = time.process_time if options.cpu_time else time.perf_counter
        self.verdicts: list[tuple[str, bool]] = []
        torch.set_num_threads(self.threads)
        kind = "processor time" if options.cpu_time else "time"
        print(f"torch {torch.__version__}, {self.threads} threads, {kind}, {self.rounds} rounds")

    def seconds(self, work) -> float:
        """A side in another process measures itself and returns its Seconds."""
        start = self.clock()
        measured = work()
        return measured if isinstance(measured, Seconds) else self.clock() - start

    def compare(self, name: str, sides: dict, targets: dict | None = None, tokens=0) -> dict:
        """How many times faster the first side is than each of the others, by their names.

        After a warm-up, the sides take turns in every round for about two seconds.
        """
        warm_up = sum(self.seconds(work) for work in sides.values())
        repeats = max(1, round(2.0 / warm_up))
        times: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(self.rounds):
            totals = dict.fromkeys(sides, 0.0)
            for _ in range(repeats):
                for side, work in sides.items():
                    totals[side] += self.seconds(work)
            for side, total in totals.items():
                times[side].append(total / repeats)
        return self.report(name, times, targets, tokens)

    def report(self, name: str, times: dict, targets: dict | None = None, tokens=0) -> dict:
        """`times` has the seconds of each side, round by round; ours is the first side."""
        ours = next(iter(times))
        ratios = {}
        for side, seconds in times.items():
            line = f"{name:<38} {side:<14} {1000 * median(seconds):10.2f} ms"
            if tokens:
                line += f" {tokens / median(seconds):9.1f} tok/s"
            if side != ours:
                ratio = median(b / a for a, b in zip(times[ours], seconds, strict=True))
                ratios[side] = ratio
                line += f"   {ours} is {ratio:.2f}x as fast"
                if targets and side in targets:
                    line += self.verdict(f"{name}, {side}", ratio, targets[side])
            print(line, flush=True)
        return ratios

    def verdict(self, name: str, value: float, target: float, at_most: bool = False) -> str:
        met = value <= target if at_most else value >= target
        text = f"{'<=' if at_most else '>='} {target:g}: {'met' if met else 'MISSED'}"
        self.verdicts.append((f"{name:<60} {value:8.3f} {text}", met))
        return f" ({text})"

    def summary(self) -> None:
        for line, _ in self.verdicts:
            print(line)
        print(f"{sum(met for _, met in self.verdicts)} of {len(self.verdicts)} targets met")
