"""Every method under every gain, over seeds; the table of it as text."""

import math
from dataclasses import dataclass

import numpy as np

from minvenus.experiments.lab.config import LabConfig
from minvenus.experiments.lab.credit import METHODS, Curve, train
from minvenus.experiments.lab.world import World


@dataclass(frozen=True)
class Result:
    """The curves of one method under one gain, one per seed."""

    curves: list[Curve]

    def mean_and_spread(self, what: str) -> tuple[np.ndarray, np.ndarray]:
        """Per step, of "success" or "turns": mean over seeds, and the standard deviation between them (0 with one seed)."""
        values = np.array([getattr(curve, what) for curve in self.curves])                 # [seeds, steps]
        return values.mean(axis=0), values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])


def compare(config: LabConfig, tell=lambda done, total, gains, method: None) -> dict[str, dict[str, Result]]:
    """Results by gain, then by method. `tell` hears of each one. A method that never looks at a gain is run once."""
    results: dict[str, dict[str, Result]] = {}
    blind: dict[str, Result] = {}
    worlds, methods = config.worlds(), config.method_names()
    for gains, world in worlds.items():
        results[gains] = {}
        for method in methods:
            result = blind.get(method) or run(config, world, method)
            if not METHODS[method][1].use_gain:
                blind[method] = result
            results[gains][method] = result
            tell(sum(map(len, results.values())), len(worlds) * len(methods), gains, method)
    return results


def run(config: LabConfig, world: World, method: str) -> Result:
    return Result([train(world, METHODS[method][1], seed, steps=config.steps, groups=config.groups,
                         group_size=config.group_size, learning_rate=config.learning_rate) for seed in range(config.seeds)])


def shown_steps(steps: int) -> list[int]:
    """Every twentieth step (fewer of a long run, so that a row fits a terminal), and the last one."""
    return sorted({*range(0, steps, 20 * math.ceil(steps / 100)), steps - 1})


def describe(world: World) -> str:
    gains = world.gains
    noise = {*gains.right_noise, gains.wrong_noise}
    text = f"right visits {' '.join(f'{g:.2f}' for g in gains.right)}, wrong {gains.wrong:.2f}"
    if noise == {0.0}:
        return text
    if len(noise) == 1:
        return f"{text}, noise {gains.wrong_noise:.2f}"
    return f"{text}, noise {' '.join(f'{s:.2f}' for s in gains.right_noise)}, wrong {gains.wrong_noise:.2f}"


def setting(config: LabConfig) -> str:
    world = next(iter(config.worlds().values()))
    right, wrong, stop = world.start
    return (f"{config.hops} hops, {config.visits} visits at most{', a search before each' if config.searches else ''}, "
            f"{'one row for all hops' if config.shared else 'one row per hop'}, "
            f"start right {right:.2f} wrong {wrong:.2f} stop {stop:.2f}, "
            f"{config.groups} groups of {config.group_size}, {config.seeds} seeds, learning rate {config.learning_rate:g}")


def cells(result: Result, steps: list[int]) -> list[str]:
    """Success at each of the steps, then turns at the last one: mean and spread over seeds."""
    mean, spread = result.mean_and_spread("success")
    turns, turns_spread = result.mean_and_spread("turns")
    return [*(f"{mean[s]:.2f} ±{spread[s]:.2f}" for s in steps), f"{turns[-1]:.1f} ±{turns_spread[-1]:.1f}"]


def table(config: LabConfig, results: dict[str, dict[str, Result]]) -> str:
    steps = shown_steps(config.steps)
    width = max(len(name) for name in [*config.method_names(), "method"]) + 2
    head = f"{'method':<{width}}" + "".join(f"{'step ' + str(s):>12}" for s in steps) + f"{'turns':>12}"
    lines = [f"Share of correct answers, mean ± spread over seeds, and turns at step {steps[-1]}.", setting(config)]
    for gains, world in config.worlds().items():
        lines += ["", f"gains {gains}: {describe(world)}", head]
        lines += [f"{method:<{width}}" + "".join(f"{cell:>12}" for cell in cells(result, steps))
                  for method, result in results[gains].items()]
    lines += ["", *(f"{name:<{width}}{METHODS[name][0]}" for name in config.method_names())]
    return "\n".join(lines)
