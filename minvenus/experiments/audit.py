"""The gain audit: on the toy web the right path is known, so one can see which visits the gains reward.

    right       a page of the question's path, at its hop
    wrong       another page            repeated     a page again          failed     a page that no search had listed

For each kind and hop: how often, the mean gain, its spread and the share of positive ones. Before any RL, right
visits should gain clearly more than wrong ones, and as much at the last hop as at the first: gains that all come
early make it pay to stop early. The policy in training also scores the gains, so the same table is made again after
training.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev

from minvenus.config import ConfigError, check, read_json
from minvenus.console import table
from minvenus.experiments.scripts import run
from minvenus.report.saved import SavedBatch, load_batch
from minvenus.tools.toyweb import ToyWeb, visit_labels

KINDS = ("right", "wrong", "repeated", "failed")
VisitGains = dict[tuple[str, int], list[float]]         # (kind, hop) -> gains


@dataclass(frozen=True)
class AuditConfig:
    """python -m minvenus.experiments audit: what the gains of a checkpoint, or of a training run, reward."""

    model: str | None = None          # a checkpoint of the tiny model: 256 rollouts of 4 hops, 2 turns to spare
    run: str | None = None            # or a folder of train_igpo.py: its first and its last saved rollouts

    def __post_init__(self):
        check(self)
        if (self.model is None) == (self.run is None):
            raise ConfigError("give --model FOLDER (a checkpoint) or --run FOLDER (of train_igpo.py)")


def main(config: AuditConfig) -> str:
    if config.run:
        return audit_run(Path(config.run))
    with tempfile.TemporaryDirectory() as folder:
        # one step of training: its rollouts are sampled and scored before the update
        run("train_igpo.py", "--model", config.model, "--out", folder, "--steps", 1, "--questions", 64, "--group", 4,
            "--hops", 4, "--slack", 2, "--seed", 1000, "--pages", 8192, "--evaluate-questions", 1)
        return audit_run(Path(folder))


def audit_run(folder: Path) -> str:
    """The audit of a run's first and last saved rollouts."""
    files = sorted((folder / "rollouts").glob("step-*.jsonl"))
    if not files:
        raise ConfigError(f"{folder} has no saved rollouts")
    settings = read_json(folder / "run.json")
    if settings["data"] != "toyweb":
        raise ConfigError(f"{folder} was trained on {settings['data']}: right pages are known on the toy web only")
    seed = settings["question_seed"]
    web = ToyWeb(settings["seed"] if seed is None else seed, settings["hops"], settings["slack"])
    return "\n\n".join(audit_batch(load_batch(file), web) for file in dict.fromkeys([files[0], files[-1]]))


def audit_batch(batch: SavedBatch, web: ToyWeb) -> str:
    head = f"step {batch.step}: {len(batch.rollouts)} rollouts"
    first = [values[0] for values in batch.credit.values if values[0] is not None]
    if first and batch.recipe.gain == "log_prob":
        head += f", log P(answer | question) {fmean(first):+.2f} per token"
    return f"{head}\n{table(rows(visit_gains(batch, web)))}"


def visit_gains(batch: SavedBatch, web: ToyWeb) -> VisitGains:
    """The gains of all visits. A visit of several pages counts by its first one."""
    found: VisitGains = {}
    for rollout, gains in zip(batch.rollouts, batch.credit.gains, strict=True):
        for labels, gain in zip(visit_labels(web, rollout), gains, strict=True):
            if labels and gain is not None:
                found.setdefault(labels[0], []).append(gain)
    return found


def rows(gains: VisitGains) -> list[list[str]]:
    found = [["visit", "hop", "count", "mean", "spread", "positive"]]
    for kind in KINDS:
        of_hops = {str(hop): values for (name, hop), values in sorted(gains.items()) if name == kind}
        if len(of_hops) > 1:
            of_hops["all"] = [value for values in of_hops.values() for value in values]
        for hop, values in of_hops.items():
            positive = fmean(value > 0 for value in values)
            numbers = [f"{fmean(values):+.2f}", f"{pstdev(values):.2f}", f"{positive:.0%}"]
            found.append([kind, hop, str(len(values)), *numbers])
    return found
