"""A training run as one page: RUN/report.html, with links to X-rays of its first and last saved step.

    write_run_page("runs/igpo")            reads metrics.jsonl, timing.jsonl, run.json and rollouts/ of the folder

Works for runs of train_igpo.py and train_sft.py, finished or not: a figure is drawn where its numbers are there. Lines are means
over neighbouring steps, the band around them is the 95 % interval of that mean; held-out accuracy has a Wilson interval.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from minvenus.config import ConfigError, read_json
from minvenus.console import clock
from minvenus.evaluation.aggregate import Z95, wilson
from minvenus.report import page, saved
from minvenus.report.curves import Series, histogram, line_plot
from minvenus.report.xray import write_page
from minvenus.train import metrics

POINTS = 40                           # of a line: neighbouring steps become one point
SHARE = (0.0, 1.0)
MANY = 150_000                        # tokens of a batch, beyond which its X-ray shows one group only


@dataclass(frozen=True)
class Plot:
    title: str
    lines: dict[str, str]             # name in metrics.jsonl -> name in the legend
    unit: str
    caption: str
    covers: tuple[float, float] | None = None


LEARNING = [
    Plot("Right answers", {"outcome": "training", "test_exact_match": "held out, exact match"}, "share of right answers",
         "Mean outcome of the training rollouts, and accuracy on questions that are never trained on.", SHARE),
    Plot("Groups that teach nothing", {"groups_without_outcome_signal": "same outcome", "groups_without_any_signal": "no signal"},
         "share of groups", "Where all rollouts of a question end alike, GRPO learns nothing; IGPO only if the gains are alike.",
         SHARE),
]
LOSS = Plot("Loss", {"loss": "training", "validation_loss": "validation"}, "nats per token", "Mean of −log p of the agent's own "
            "tokens; validation trajectories are never trained on.")
GAIN_WORDS = "What turns are paid for: how much they raised the model's own probability of the true answer."
GAINS = [
    Plot("Gain of a turn", {"gain_mean": "all", "gain_right": "right page", "gain_wrong": "wrong page"}, "gain in log P(answer)",
         "A gain is honest if reading a right page earns more than reading a wrong one."),
    Plot("Turns that helped", {"gain_positive": "gain above 0"}, "share of gains", "How often a gain is positive.", SHARE),
]
BEHAVIOUR = [
    Plot("Turns", {"turns": "training", "test_turns": "held out"}, "turns per rollout",
         "Falling while accuracy falls too: the policy learns to stop early.", (0.0, 0.0)),
    Plot("Browse ratio", {"browse_correct": "right answers", "browse_wrong": "wrong answers"}, "visits / calls",
         "Share of the tool calls that read a page, in rollouts that ended right and wrong.", SHARE),
    Plot("Malformed turns", {"malformed": "training", "test_malformed": "held out"}, "share of turns",
         "Turns that break a rule of the format.", SHARE),
    Plot("Right pages", {"right_pages": "training", "test_right_pages": "held out"}, "share of the pages that are needed",
         "Toy web only: how much of the chain of pages was found.", SHARE),
]
OPTIMISER = [
    Plot("Entropy", {"entropy": "sampled tokens"}, "nats per token", "How undecided the policy is. Near 0 it explores no more."),
    Plot("Distance to the start", {"kl": "KL to the start model"}, "nats per token", "Grows slowly in a healthy run."),
    Plot("Gradient", {"grad_norm": "norm before clipping"}, "norm", "Spikes are worth a look at the step's X-ray."),
    Plot("Log-prob gap", {"logprob_gap": "largest difference"}, "nats", "Between what the engine stored and what the trainer "
         "computes, before the first update: rounding, or they run different models."),
    Plot("IG-Scale", {"scale": "s"}, "factor", "What normalised gains are multiplied with to be as loud as outcomes."),
]


def write_run_page(run_folder) -> Path:
    run = Path(run_folder)
    rows, timing = metrics.read(run / "metrics.jsonl"), metrics.read(run / "timing.jsonl")
    if not rows:
        raise ConfigError(f"{run} has no metrics.jsonl with a finished step: not a training run, or one that has just begun")
    settings = read_json(run / "run.json") if (run / "run.json").is_file() else {}
    held_out = settings.get("evaluate_questions")
    batches, links, notes = saved_steps(run)
    parts = [page.tiles(first_numbers(rows, timing, held_out)), *notes]
    if links:
        parts.append(page.section("Look inside", [page.links(links)], "Rollouts turn by turn, with their reward arithmetic."))
    sections = [("Learning", LEARNING if "outcome" in rows[0] else [LOSS], ""), ("Gains", GAINS, GAIN_WORDS),
                ("Behaviour", BEHAVIOUR, ""), ("Optimiser", OPTIMISER, "")]
    for title, plots, intro in sections:
        drawn = [page.figure(*drawing) for p in plots if (drawing := plot(p, rows, held_out))]
        drawn += [page.figure(*d) for d in gain_figures(batches)] if title == "Gains" else []
        if drawn:
            parts.append(page.section(title, [page.figures(drawn)], intro))
    parts += [phases(timing)] if timing else []
    parts += [page.section("Settings", [page.table(["setting", "value"], flat(settings))])] if settings else []
    lede = "Every line is a mean over neighbouring steps; the band around it is the 95 % interval of that mean."
    document = page.page(f"Run {run.resolve().name}", parts, lede, [("steps", f"{len(rows):,}")], "training run")
    return page.write(run / "report.html", document)


def first_numbers(rows: list[dict], timing: list[dict], held_out: int | None) -> list[tuple[object, str, str]]:
    """The tiles: what a reader wants to know before anything else."""
    found: list[tuple[object, str, str]] = []
    accuracies = [(row["step"], row["test_exact_match"]) for row in rows if "test_exact_match" in row]
    if accuracies:
        step, value = accuracies[-1]
        low, high = wilson(value * held_out, held_out) if held_out else (None, None)
        between = f", 95 % between {low:.3f} and {high:.3f}" if low is not None else ""
        found.append((f"{value:.3f}", "held-out exact match", f"at step {step:,}{between}; first {accuracies[0][1]:.3f}"))
    tenth = max(1, len(rows) // 10)
    for key, label in (("outcome", "training outcome"), ("groups_without_outcome_signal", "groups that end alike"),
                       ("turns", "turns per rollout"), ("validation_loss", "validation loss"), ("loss", "loss")):
        values = [row[key] for row in rows if key in row]
        if values and not (key == "loss" and "outcome" in rows[0]):
            now, before = fmean(values[-tenth:]), fmean(values[:tenth])
            found.append((f"{now:.3g}", label, f"mean of the last tenth of the run; of the first {before:.3g}"))
    seconds = sum(row.get("seconds", 0.0) for row in timing)
    if seconds:
        found.append((clock(seconds), "of work", f"{seconds / len(timing):.2g} s per step"))
    return found


# ----------------------------------------------------------------------------------------------------------------- figures


def plot(wanted: Plot, rows: list[dict], held_out: int | None) -> tuple[str, str] | None:
    series = []
    for key, name in wanted.lines.items():
        points = [(row["step"], float(row[key])) for row in rows if key in row]
        if points:
            series.append(accuracy_line(name, points, held_out) if key == "test_exact_match" and held_out
                          else smooth(name, points, wanted.covers == SHARE))
    return (line_plot(series, wanted.title, "step", wanted.unit, wanted.covers), wanted.caption) if series else None


def accuracy_line(name: str, points: Sequence[tuple[int, float]], questions: int) -> Series:
    bounds = [wilson(min(questions, value * questions), questions) for _, value in points]
    return Series(name, [x for x, _ in points], [y for _, y in points], [low for low, _ in bounds], [high for _, high in bounds])


def smooth(name: str, points: Sequence[tuple[int, float]], share: bool = False) -> Series:
    """Means of neighbouring points, at most POINTS of them, each with its 95 % interval as far as the points themselves tell."""
    size = math.ceil(len(points) / POINTS)
    parts = [points[i:i + size] for i in range(0, len(points), size)]
    xs, ys, half = [], [], []
    for part in parts:
        values = [value for _, value in part]
        xs.append(fmean(x for x, _ in part))
        ys.append(fmean(values))
        half.append(Z95 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0)
    if size == 1:
        return Series(name, xs, ys)
    low, high = [y - h for y, h in zip(ys, half, strict=True)], [y + h for y, h in zip(ys, half, strict=True)]
    if share:
        low, high = [max(0.0, v) for v in low], [min(1.0, v) for v in high]
    return Series(name, xs, ys, low, high)


def gain_figures(batches: list[saved.SavedBatch]) -> list[tuple[str, str]]:
    """How gains are spread at the first and at the last saved step."""
    drawn = []
    for batch in batches:
        gains = [gain for row in batch.credit.gains for gain in row if gain is not None]
        if gains:
            drawn.append((histogram(gains, f"Gains at step {batch.step:,}", "gain in log P(answer)", "turns"),
                          f"{len(gains):,} gains of {len(batch.rollouts):,} rollouts; mean {fmean(gains):.3g}."))
    return drawn


def phases(timing: list[dict]) -> str:
    """Where the seconds of a step go."""
    names = [key for row in timing for key in row if key.endswith("_seconds") and not key.startswith("tokens_per")]
    names = list(dict.fromkeys(names))
    totals = {name.removesuffix("_seconds"): sum(row.get(name, 0.0) for row in timing) for name in names}
    whole = sum(totals.values()) or 1.0
    table = page.table(["phase", "seconds", "seconds per step", "share"], [
        (name, f"{total:,.1f}", f"{total / len(timing):.3f}", f"{total / whole:.0%}") for name, total in totals.items()])
    series = [smooth(name.removesuffix("_seconds"), [(row["step"], row[name]) for row in timing if name in row])
              for name in names]
    drawn = page.figure(line_plot(series, "Seconds per phase", "step", "seconds", (0.0, 0.0)),
                        "Wall clock; other work on the machine counts too.") if series else ""
    return page.section("Time", [table, page.figures([drawn])] if series else [], "Where the seconds of a step go.")


# ---------------------------------------------------------------------------------------------------------- saved rollouts


def saved_steps(run: Path) -> tuple[list[saved.SavedBatch], list[tuple[str, str]], list[str]]:
    """First and last saved batch, links to their X-rays, and what could not be read."""
    files = sorted((run / "rollouts").glob("step-*.jsonl"))
    batches, links, notes = [], [], []
    for path in dict.fromkeys([*files[:1], *files[-1:]]):
        out = run / f"xray-{path.stem}.html"
        try:
            batch = saved.load_batch(path)
            write_page(path, out, telling_group(batch))
        except ConfigError as error:
            notes.append(page.note(str(error), warn=True))
            continue
        batches.append(batch)
        size = f"{len(batch.rollouts)} rollouts of {len(set(batch.groups))} questions"
        links.append((out.name, f"X-ray of step {batch.step:,}: {size}"))
    return batches, links, notes


def telling_group(batch: saved.SavedBatch) -> int | None:
    """All groups where that makes a page of ordinary size, else the one whose rollouts end most differently."""
    if sum(len(rollout.tokens) for rollout in batch.rollouts) <= MANY:
        return None
    outcomes = {g: [m.outcome for m in batch.measured if m.group == g] for g in batch.groups}
    return max(outcomes, key=lambda g: (max(outcomes[g]) - min(outcomes[g]), -g))


def flat(settings: dict, prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in settings.items():
        found += flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [
            (prefix + key, value if isinstance(value, str) else json.dumps(value))]
    return found
