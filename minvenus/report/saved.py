"""Files with the rollouts of a training step and all their reward arithmetic, a JSON line for each.

    {"format": "minvenus credit 2", "step": 20, "group": 0, "gain_policy": "current",
     "recipe": {...}, "rollout": {...}, "truth_logprobs": [[-1.5, -2.25], null, ...],
     "outcome": 1.0, "arithmetic": {"beliefs": ..., "gains": ..., ...}}

`rollout` is that of agent/record.py. `truth_logprobs` has an entry per turn: the log-probs of the
truth's tokens before it. `outcome` is the score of the answer before any penalty. `arithmetic` is
a RolloutCredit. A file holds a whole batch, because IG-Scale is over all of it. Reading computes
the credit again, and refuses a file whose arithmetic differs.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from minvenus.agent.record import rollout_from_json, rollout_to_json
from minvenus.config import ConfigError
from minvenus.files import read_records, step_name, write_text
from minvenus.igpo.credit import Credit, assign_credit
from minvenus.igpo.recipes import Recipe
from minvenus.types import Sample

FORMAT = "minvenus credit 2"


@dataclass(frozen=True)
class SavedBatch:
    """The rollouts of a step that were trained on."""

    step: int                          # the step that the batch makes, from 1 as in metrics.jsonl
    gain_policy: str                   # which model scored the truth: "current" or "reference"
    recipe: Recipe                     # with the lead-in that was used
    samples: list[Sample]
    credit: Credit

    def lines(self) -> list[dict]:
        lines = []
        for i, sample in enumerate(self.samples):
            lines.append({
                "format": FORMAT,
                "step": self.step,
                "group": sample.group,
                "gain_policy": self.gain_policy,
                "recipe": asdict(self.recipe),
                "rollout": rollout_to_json(sample.rollout),
                "truth_logprobs": sample.truth_logprobs,
                "outcome": sample.outcome,
                "arithmetic": asdict(self.credit.of_rollout(i, sample.group)),
            })
        return lines


def path_of(run, step: int) -> Path:
    return Path(run) / "rollouts" / f"{step_name(step)}.jsonl"


def save_batch(run, batch: SavedBatch) -> None:
    lines = [json.dumps(line, allow_nan=False) + "\n" for line in batch.lines()]
    write_text(path_of(run, batch.step), "".join(lines))


def load_batch(path) -> SavedBatch:
    """The batch of a file. Its credit is computed again, and must be what the file says."""
    lines = []
    samples = []
    try:
        for _, line in read_records(path):
            lines.append(line)
            rollout = rollout_from_json(line["rollout"])
            samples.append(Sample(rollout, line["truth_logprobs"], line["outcome"], line["group"]))
        first = lines[0]
        recipe = Recipe(**first["recipe"])
        credit = assign_credit(samples, recipe)
        batch = SavedBatch(first["step"], first["gain_policy"], recipe, samples, credit)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is no batch of rollouts with their reward arithmetic: "
                          f"{error}") from None

    for number, (line, computed) in enumerate(zip(lines, batch.lines(), strict=True), 1):
        for name, value in computed.items():
            if rounded(line.get(name), 9) != rounded(value, 9):
                raise ConfigError(f"{path}, line {number}: stored and computed {name} differ. The "
                                  "file is not one whole batch, was changed, or was made by "
                                  "another version")
    return batch


def rounded(value, places: int):
    """A JSON value, its numbers rounded to so many decimal places."""
    return json.loads(json.dumps(value), parse_float=lambda digits: round(float(digits), places))
