"""Rollouts of a training step with all of their reward arithmetic, one JSON line each, and back.

    {"format": "minvenus credit 1", "step": 20, "group": 0, "gain_policy": "current", "recipe": {...},
     "rollout": {...}, "answer_logprobs": [[-1.5, -2.25], null, ...], "outcome": 1.0,
     "arithmetic": {"values": ..., "gains": ..., ...}}

`rollout` is that of agent/record.py. `answer_logprobs` has an entry per turn: log-probs of the true
answer's tokens before it. `outcome` is the score of the answer before any penalty. `arithmetic` is
Credit.arithmetic. A file is one whole batch, because normalisation and IG-Scale are over all of its
lines. Reading computes the credit again and refuses a file that disagrees.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten

from minvenus.agent.record import rollout_from_json, rollout_to_json
from minvenus.config import ConfigError
from minvenus.files import read_rows, step_name, write_text
from minvenus.igpo.credit import Credit, Measured, credit
from minvenus.igpo.recipes import Recipe
from minvenus.types import Rollout

FORMAT = "minvenus credit 1"


@dataclass(frozen=True)
class SavedBatch:
    """The rollouts of a step that were trained on. Lists have one entry per rollout."""

    step: int                          # the batch that makes this step, counted from 1 as in metrics.jsonl
    gain_policy: str                   # which model scored the answers: "current" or "reference"
    recipe: Recipe                     # with the lead-in that was used
    rollouts: list[Rollout]
    measured: list[Measured]
    credit: Credit

    def lines(self) -> list[dict]:
        return [{"format": FORMAT, "step": self.step, "group": m.group, "gain_policy": self.gain_policy,
                 "recipe": asdict(self.recipe), "rollout": rollout_to_json(rollout), "answer_logprobs": m.logprobs,
                 "outcome": m.outcome, "arithmetic": self.credit.arithmetic(i, m.group)}
                for i, (rollout, m) in enumerate(zip(self.rollouts, self.measured, strict=True))]


def path_of(run, step: int) -> Path:
    return Path(run) / "rollouts" / f"{step_name(step)}.jsonl"


def save_batch(run, batch: SavedBatch) -> None:
    lines = [json.dumps(line, allow_nan=False) + "\n" for line in batch.lines()]
    write_text(path_of(run, batch.step), "".join(lines))


def load_batch(path) -> SavedBatch:
    """The batch of a file. Its credit is computed from log-probs and outcomes, and must be what the file says."""
    lines, rollouts, measured = [], [], []
    try:
        for number, line in read_rows(Path(path)):
            if isinstance(line, str) or line.get("format") != FORMAT:
                raise ValueError(f"line {number} is {line if isinstance(line, str) else 'of another format'}")
            lines.append(line)
            rollouts.append(rollout_from_json(line["rollout"]))
            measured.append(Measured.of(rollouts[-1], line["answer_logprobs"], line["outcome"], line["group"]))
        recipe = Recipe(**lines[0]["recipe"])
        batch = SavedBatch(lines[0]["step"], lines[0]["gain_policy"], recipe, rollouts, measured,
                           credit(measured, recipe))
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is no batch of rollouts with their reward arithmetic: {error}") from None
    for number, (line, computed) in enumerate(zip(lines, batch.lines(), strict=True), 1):
        if wrong := difference(line, computed):
            raise ConfigError(f"{path}, line {number}: stored and computed differ: {wrong}. The file is not one whole "
                              "batch, was changed, or was made by another version")
    return batch


def difference(stored, computed, where: str = "") -> str | None:
    """The first place where two JSON values differ by more than rounding, in words; None if there is none."""
    if stored == computed:
        return None
    if isinstance(computed, float) and isinstance(stored, int | float):
        close = math.isclose(stored, computed, rel_tol=1e-9, abs_tol=1e-9)
        return None if close else f"{where} {stored}, computed {computed}"
    if isinstance(computed, dict) and isinstance(stored, dict) and stored.keys() == computed.keys():
        pairs = [(f"{where}.{key}".lstrip("."), stored[key], computed[key]) for key in computed]
    elif isinstance(computed, list) and isinstance(stored, list) and len(stored) == len(computed):
        pairs = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(stored, computed, strict=True))]
    else:
        return f"{where} {shorten(repr(stored), 60)}, computed {shorten(repr(computed), 60)}"
    return next((found for name, a, b in pairs if (found := difference(a, b, name))), None)
