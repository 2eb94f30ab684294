"""Timing for all benchmarks: sides that take turns in one process, median ratios, and one table of targets at the end.

A busy machine slows both sides of a round alike: read the ratio, not the milliseconds.
"""

import argparse
import statistics
import time

import torch


def parser(doc: str, parts) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--only", nargs="+", choices=list(parts), default=list(parts), help="parts to run")
    made.add_argument("--rounds", type=int, default=3, help="the median of so many rounds counts")
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--cpu-time", dest="clock", action="store_const", const=time.process_time,
                      default=time.perf_counter, help="count processor time, not time on the wall")
    return made


class Timing:
    """Measures, prints, and keeps what has a target."""

    def __init__(self, options):
        self.rounds, self.clock, self.targets = options.rounds, options.clock, []
        torch.set_num_threads(options.threads)
        print(f"torch {torch.__version__}, {options.threads} threads, {self.clock.__name__}, {self.rounds} rounds")

    def seconds(self, work) -> float:
        """A side in another process measures itself and returns its seconds; others return anything else."""
        start = self.clock()
        own = work()
        return own if isinstance(own, float) else self.clock() - start

    def interleaved(self, sides: dict, least: float = 2.0) -> dict[str, list[float]]:
        """name -> seconds of one run, by round. After a warm-up, the sides take turns in every round for `least`
        seconds."""
        warm_up = sum(self.seconds(work) for work in sides.values())
        repeats = max(1, round(least / warm_up))
        rounds = []
        for _ in range(self.rounds):
            runs = [[self.seconds(work) for work in sides.values()] for _ in range(repeats)]
            rounds.append([sum(side) / repeats for side in zip(*runs, strict=True)])
        return dict(zip(sides, map(list, zip(*rounds, strict=True)), strict=True))

    def compare(self, name: str, sides: dict, targets: dict[str, float], tokens: int | None = None,
                least: float = 2.0) -> dict:
        """How many times faster the first side is than each of the others, as the median over rounds."""
        times = self.interleaved(sides, least)
        ours = next(iter(sides))
        for side, measured in times.items():
            middle = statistics.median(measured)
            speed = f"{tokens / middle:9.1f} tok/s" if tokens else ""
            line = f"{name:<38} {side:<14} {1000 * middle:10.2f} ms {speed}"
            if side != ours:
                ratio = statistics.median(b / a for a, b in zip(times[ours], measured, strict=True))
                line += f"   {ours} is {ratio:.2f}x as fast {self.against(f'{name}, {side}', ratio, targets.get(side))}"
            print(line, flush=True)
        return {side: statistics.median(measured) for side, measured in times.items()}

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
