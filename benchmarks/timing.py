"""Timing for all benchmarks: sides that take turns in one process, median ratios, and one table of targets at the end.

A busy machine slows both sides of a round alike: read the ratio, not the milliseconds. The peers (transformers, trl)
are imported beside our own code, so their environment runs the benchmark; without one our side is measured alone:

    MINVENUS_TRANSFORMERS_PYTHON   python of the environment with transformers and trl
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

import torch


def main(doc: str, parts: dict) -> None:
    """Run the parts that the command line names, each with a Timing, in the environment of the peers."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=list(parts), default=list(parts), help="parts to run"
    )
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many rounds counts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--cpu-time",
        dest="clock",
        action="store_const",
        const=time.process_time,
        default=time.perf_counter,
        help="count processor time, not time on the wall",
    )
    options = parser.parse_args()
    peer = os.environ.pop("MINVENUS_TRANSFORMERS_PYTHON", None)
    if peer:
        module = sys.modules["__main__"].__spec__.name
        sys.exit(subprocess.run([peer, "-m", module, *sys.argv[1:]]).returncode)
    timing = Timing(options.rounds, options.threads, options.clock)
    for name in options.only:
        parts[name](timing)
    timing.summary()


class Timing:
    """Measures, prints, and keeps what has a target."""

    def __init__(self, rounds: int, threads: int, clock):
        self.rounds, self.threads, self.clock, self.targets = rounds, threads, clock, []
        torch.set_num_threads(threads)
        print(f"torch {torch.__version__}, {threads} threads, {clock.__name__}, {rounds} rounds")

    def seconds(self, work) -> float:
        """A side in another process measures itself and returns its seconds; others return anything else."""
        start = self.clock()
        own = work()
        return own if isinstance(own, float) else self.clock() - start

    def compare(
        self,
        name: str,
        sides: dict,
        targets: dict[str, float] | None = None,
        tokens: int | None = None,
    ) -> None:
        """How many times faster the first side is than each of the others, as the median over rounds. After a warm-up,
        the sides take turns in every round for about two seconds."""
        warm_up = sum(self.seconds(work) for work in sides.values())
        repeats = max(1, round(2.0 / warm_up))
        times: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(self.rounds):
            runs = [[self.seconds(work) for work in sides.values()] for _ in range(repeats)]
            for side, several in zip(sides, zip(*runs, strict=True), strict=True):
                times[side].append(sum(several) / repeats)
        self.report(name, times, targets or {}, tokens)

    def report(
        self,
        name: str,
        times: dict[str, list[float]],
        targets: dict[str, float],
        tokens: int | None = None,
    ) -> None:
        """`times` has the seconds of each side, round by round."""
        ours = next(iter(times))
        for side, measured in times.items():
            middle = statistics.median(measured)
            speed = f"{tokens / middle:9.1f} tok/s" if tokens else ""
            line = f"{name:<38} {side:<14} {1000 * middle:10.2f} ms {speed}"
            if side != ours:
                ratio = statistics.median(b / a for a, b in zip(times[ours], measured, strict=True))
                line += f"   {ours} is {ratio:.2f}x as fast {self.against(f'{name}, {side}', ratio, targets.get(side))}"
            print(line, flush=True)

    def against(self, name: str, value: float, target: float | None, at_most: bool = False) -> str:
        if target is None:
            return ""
        met = value <= target if at_most else value >= target
        self.targets.append((name, value, f"{'<=' if at_most else '>='} {target:g}", met))
        return f"({self.targets[-1][2]}: {'met' if met else 'MISSED'})"

    def summary(self) -> None:
        for name, value, target, met in self.targets:
            print(f"{name:<60} {value:8.3f} {target:>9}   {'met' if met else 'MISSED'}")
        print(f"{sum(met for *_, met in self.targets)} of {len(self.targets)} targets met")
