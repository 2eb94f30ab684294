"""Rollouts of a training step with all of their reward arithmetic, one JSON line each, and back.

    {"format": "minvenus credit 1", "step": 20, "group": 0, "gain_policy": "current", "recipe": {...},
     "rollout": {...}, "answer_logprobs": [[-1.5, -2.25], null, ...], "outcome": 1.0,
     "arithmetic": {"values": ..., "gains": ..., ...}}

`rollout` is that of agent/record.py. `answer_logprobs` has an entry per turn: log-probs of the true
answer's tokens before it. `outcome` is the score of the answer before any penalty. `arithmetic` is
Credit.arithmetic. A file is one whole batch, because normalisation and IG-Scale are over all of its
lines. Reading computes the credit again and refuses a file that disagrees: what a page shows is what the
shipped code gives.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from minvenus.agent.record import rollout_from_json, rollout_to_json
from minvenus.config import ConfigError, Recipe
from minvenus.files import read_rows, step_name, write_text
from minvenus.igpo.credit import Credit, Measured, credit
from minvenus.types import Rollout

FORMAT = "minvenus credit 1"
SHARED = ("step", "gain_policy", "recipe")           # the same on every line of a file


@dataclass(frozen=True)
class SavedBatch:
    """The rollouts of a step that were trained on. Lists have one entry per rollout."""

    step: int                          # the batch that makes this step, counted from 1 as in metrics.jsonl
    gain_policy: str                   # which model scored the answers: "current" or "reference"
    recipe: Recipe                     # with the lead-in that was used
    rollouts: list[Rollout]
    measured: list[Measured]
    credit: Credit

    @property
    def groups(self) -> list[int]:
        return [m.group for m in self.measured]


def path_of(run, step: int) -> Path:
    return Path(run) / "rollouts" / f"{step_name(step)}.jsonl"


def save_batch(run, batch: SavedBatch) -> None:
    """Write the step's file into the run's folder."""
    lines = [{"format": FORMAT, "step": batch.step, "group": m.group, "gain_policy": batch.gain_policy,
              "recipe": asdict(batch.recipe), "rollout": rollout_to_json(rollout), "answer_logprobs": m.logprobs,
              "outcome": m.outcome, "arithmetic": batch.credit.arithmetic(i, m.group)}
             for i, (rollout, m) in enumerate(zip(batch.rollouts, batch.measured, strict=True))]
    write_text(path_of(run, batch.step), "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))


def load_batch(path) -> SavedBatch:
    """The batch of a file. Its credit is computed from log-probs and outcomes, and must be what the file says."""
    lines, rollouts, measured = [], [], []
    for number, line in read_rows(Path(path)):
        if isinstance(line, str) or line.get("format") != FORMAT:
            reason = line if isinstance(line, str) else f"its format is not {FORMAT!r}"
            raise ConfigError(f"{path}, line {number} is not a rollout with its reward arithmetic: {reason}")
        lines.append(line)
        if other := [key for key in SHARED if line.get(key) != lines[0].get(key)]:
            raise ConfigError(f"{path}, line {number}: another {' and '.join(other)} than line 1; a file is one batch")
    if not lines:
        raise ConfigError(f"{path} is empty")
    try:
        recipe = Recipe(**lines[0]["recipe"])
        for line in lines:
            rollouts.append(rollout_from_json(line["rollout"]))
            measured.append(Measured.of(rollouts[-1], line["answer_logprobs"], line["outcome"], line["group"]))
        credited = credit(measured, recipe)
        for i, (line, m) in enumerate(zip(lines, measured, strict=True)):
            if wrong := difference(line["arithmetic"], credited.arithmetic(i, m.group)):
                raise ValueError(f"line {i + 1}: stored and computed reward arithmetic differ: {wrong}. The file was "
                                 "changed, or made by another version")
        return SavedBatch(lines[0]["step"], lines[0]["gain_policy"], recipe, rollouts, measured, credited)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} cannot be credited: {error}") from None


def difference(stored, computed, where: str = "") -> str | None:
    """The first place where two JSON values differ by more than rounding, in words; None if there is none."""
    if isinstance(computed, float) and isinstance(stored, int | float):
        close = math.isclose(stored, computed, rel_tol=1e-9, abs_tol=1e-9)
        return None if close else f"{where} {stored}, computed {computed}"
    if isinstance(computed, dict) and isinstance(stored, dict) and stored.keys() == computed.keys():
        pairs = [(f"{where}.{key}".lstrip("."), stored[key], computed[key]) for key in computed]
    elif isinstance(computed, list) and isinstance(stored, list) and len(stored) == len(computed):
        pairs = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(stored, computed, strict=True))]
    else:
        return None if stored == computed else f"{where} {stored!r}, computed {computed!r}"
    return next((found for name, a, b in pairs if (found := difference(a, b, name))), None)
