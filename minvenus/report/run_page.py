"""A training run as one page: RUN/report.html, with links to X-rays of its first and last saved step.

    write_run_page("runs/igpo")        reads metrics.jsonl, timing.jsonl, run.json and rollouts/ of the folder

Works for runs of train_igpo.py and train_sft.py, finished or not: a figure is drawn where its numbers are
there. Step 0 is the model before training. Lines are means over neighbouring steps, the band around them
is the 95 % interval of that mean; held-out exact match has a Wilson interval.
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
from minvenus.files import read_jsonl, write_text
from minvenus.report import page, saved
from minvenus.report.curves import Series, histogram, line_plot
from minvenus.report.xray import write_page

POINTS = 40                           # of a line: neighbouring steps become one point
SHARE = (0.0, 1.0)
MANY = 150_000                        # tokens of a batch, beyond which its X-ray shows one group only
BEFORE = "before_"                    # of the names of numbers that were measured before the first update


@dataclass(frozen=True)
class Plot:
    title: str
    lines: dict[str, str]             # name in metrics.jsonl -> name in the legend
    unit: str
    caption: str
    covers: tuple[float, float] | None = None


LEARNING = [
    Plot("Right answers", {"outcome": "training", "test_exact_match": "held out, exact match"},
         "share of right answers", "Mean outcome of the training rollouts, and exact match on questions that are "
         "never trained on.", SHARE),
    Plot("Groups that teach nothing",
         {"groups_without_outcome_signal": "same outcome", "groups_without_any_signal": "no signal"}, "share of groups",
         "Where all rollouts of a question end alike, GRPO learns nothing; IGPO only if the gains are alike.", SHARE),
]
LOSS = Plot("Loss", {"loss": "training", "validation_loss": "validation"}, "nats per token",
            "Mean of −log p of the agent's own tokens; validation trajectories are never trained on.")
GAINS = [
    Plot("Gain of a turn", {"gain_mean": "all", "gain_right": "right page", "gain_wrong": "wrong page"},
         "gain in log P(answer)", "A gain is honest if reading a right page earns more than reading a wrong one."),
    Plot("Turns that helped", {"gain_positive": "gain above 0"}, "share of gains",
         "How often a gain is positive.", SHARE),
]
BEHAVIOUR = [
    Plot("Turns", {"turns": "training", "test_turns": "held out"}, "turns per rollout",
         "Falling while accuracy falls too: the policy learns to stop early.", (0.0, 0.0)),
    Plot("Browse ratio", {"browse_correct": "right answers", "browse_wrong": "wrong answers"}, "visits / calls",
         "Share of the tool calls that read a page, in rollouts that ended right and wrong.", SHARE),
    Plot("Malformed turns", {"malformed": "training", "test_malformed": "held out"}, "share of turns",
         "Turns that break a rule of the format.", SHARE),
    Plot("Right pages", {"right_pages": "training", "test_right_pages": "held out"}, "share of the needed pages",
         "Toy web only: how much of the chain of pages was found.", SHARE),
]
OPTIMISER = [
    Plot("Entropy", {"entropy": "sampled tokens"}, "nats per token",
         "How undecided the policy is. Near 0 it explores no more."),
    Plot("Distance to the start", {"kl": "KL to the start model"}, "nats per token", "Grows slowly in a healthy run."),
    Plot("Gradient", {"grad_norm": "norm before clipping"}, "norm", "Spikes are worth a look at the step's X-ray."),
    Plot("Log-prob gap", {"logprob_gap": "largest difference"}, "nats", "Between what the engine stored and what the "
         "trainer computes, before the first update: rounding, or they run different models."),
    Plot("IG-Scale", {"scale": "s"}, "factor", "Brings normalised gains to the mean size of the outcomes' z-scores."),
]
IGPO_TILES = {"test_exact_match": "held-out exact match", "outcome": "training outcome",
              "groups_without_outcome_signal": "groups that end alike", "turns": "turns per rollout"}
SFT_TILES = {"loss": "loss", "validation_loss": "validation loss"}


def write_run_page(run_folder) -> Path:
    run = Path(run_folder)
    rows, timing = read_jsonl(run / "metrics.jsonl"), read_jsonl(run / "timing.jsonl")
    if not rows:
        raise ConfigError(f"{run} has no metrics.jsonl with a finished step: not a training run, or one that has just "
                          "begun")
    settings = read_json(run / "run.json") if (run / "run.json").is_file() else {}
    held_out, igpo = settings.get("evaluate_questions"), "outcome" in rows[0]
    rows = with_step_0(rows)
    batches, links, notes = saved_steps(run)
    parts = [page.tiles(tiles(rows, timing, IGPO_TILES if igpo else SFT_TILES)), *notes]
    if links:
        words = "Rollouts turn by turn, with their reward arithmetic."
        parts.append(page.section("Look inside", [page.links(links)], words))
    words = "What turns are paid for: how much they raised the model's own probability of the true answer."
    parts += section("Learning", LEARNING if igpo else [LOSS], rows, held_out)
    parts += section("Gains", GAINS, rows, held_out, words, [gain_figure(batch) for batch in batches])
    parts += section("Behaviour", BEHAVIOUR, rows, held_out)
    parts += section("Optimiser", OPTIMISER, rows, held_out)
    parts += [phases(timing)] if timing else []
    parts += [page.section("Settings", [page.table(["setting", "value"], flat(settings))])] if settings else []
    lede = "Every line is a mean over neighbouring steps; the band around it is the 95 % interval of that mean."
    facts = [("steps", f"{rows[-1]['step']:,}")]
    return write_text(run / "report.html", page.page(f"Run {run.resolve().name}", parts, lede, facts, "training run"))


def with_step_0(rows: list[dict]) -> list[dict]:
    """The numbers of the model before training, which stand in the first row, as a row of their own."""
    before = {key.removeprefix(BEFORE): value for key, value in rows[0].items() if key.startswith(BEFORE)}
    return [{"step": 0, **before}, *rows] if before else rows


def tiles(rows: list[dict], timing: list[dict], labels: dict[str, str]) -> list[tuple[str, str, str]]:
    """How the run began and how it ended: means over the first and the last tenth of what was measured."""
    found = []
    for key, label in labels.items():
        points = [(row["step"], row[key]) for row in rows if key in row]
        if not points:
            continue
        tenth = max(1, len(points) // 10)
        start, end = (fmean(value for _, value in part) for part in (points[:tenth], points[-tenth:]))
        value, note = f"{start:.3g} → {end:.3g}", f"from step {points[0][0]:,} to step {points[-1][0]:,}"
        if len(points) == 1:
            value, note = f"{end:.3g}", f"at step {points[0][0]:,}"
        found.append((value, label, note))
    seconds = sum(row.get("seconds", 0.0) for row in timing)
    if seconds:
        found.append((clock(seconds), "of work", f"{seconds / len(timing):.2g} s per step"))
    return found


# ------------------------------------------------------------------------------------------------ figures


def section(title: str, plots: list[Plot], rows: list[dict], held_out: int | None, intro: str = "",
            more: Sequence[str] = ()) -> list[str]:
    """A section with the plots whose numbers are there; nothing where there are none."""
    drawn = []
    for wanted in plots:
        lines = []
        for key, name in wanted.lines.items():
            points = [(row["step"], float(row[key])) for row in rows if key in row]
            if points and key == "test_exact_match" and held_out:
                lines.append(exact_match_line(name, points, held_out))
            elif points:
                lines.append(smooth(name, points, wanted.covers == SHARE))
        if lines:
            plot = line_plot(lines, wanted.title, "step", wanted.unit, wanted.covers)
            drawn.append(page.figure(plot, wanted.caption))
    drawn += [figure for figure in more if figure]
    return [page.section(title, [page.figures(drawn)], intro)] if drawn else []


def exact_match_line(name: str, points: Sequence[tuple[int, float]], questions: int) -> Series:
    bounds = [wilson(min(questions, value * questions), questions) for _, value in points]
    low, high = [low for low, _ in bounds], [high for _, high in bounds]
    return Series(name, [x for x, _ in points], [y for _, y in points], low, high)


def smooth(name: str, points: Sequence[tuple[int, float]], share: bool = False) -> Series:
    """Means of neighbouring points, at most POINTS of them, each with its 95 % interval."""
    size = math.ceil(len(points) / POINTS)
    xs, ys, low, high = [], [], [], []
    for start in range(0, len(points), size):
        part = points[start:start + size]
        values = [value for _, value in part]
        mean = fmean(values)
        half = Z95 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        xs.append(fmean(x for x, _ in part))
        ys.append(mean)
        low.append(max(0.0, mean - half) if share else mean - half)
        high.append(min(1.0, mean + half) if share else mean + half)
    return Series(name, xs, ys) if size == 1 else Series(name, xs, ys, low, high)


def gain_figure(batch: saved.SavedBatch) -> str:
    """How the gains of a saved step are spread."""
    gains = [gain for row in batch.credit.gains for gain in row if gain is not None]
    if not gains:
        return ""
    return page.figure(histogram(gains, f"Gains at step {batch.step:,}", "gain in log P(answer)", "turns"),
                       f"{len(gains):,} gains of {len(batch.rollouts):,} rollouts; mean {fmean(gains):.3g}.")


def phases(timing: list[dict]) -> str:
    """Where the seconds of a step go."""
    names = list(dict.fromkeys(key for row in timing for key in row if key.endswith("_seconds")))
    totals = {name: sum(row.get(name, 0.0) for row in timing) for name in names}
    whole = sum(totals.values()) or 1.0
    rows = [(name.removesuffix("_seconds"), f"{total:,.1f}", f"{total / len(timing):.3f}", f"{total / whole:.0%}")
            for name, total in totals.items()]
    lines = [smooth(name.removesuffix("_seconds"), [(row["step"], row[name]) for row in timing if name in row])
             for name in names]
    plot = page.figure(line_plot(lines, "Seconds per phase", "step", "seconds", (0.0, 0.0)),
                       "Wall clock; other work on the machine counts too.")
    table = page.table(["phase", "seconds", "seconds per step", "share"], rows)
    return page.section("Time", [table, page.figures([plot])], "Where the seconds of a step go.")


# ----------------------------------------------------------------------------------------- saved rollouts


def saved_steps(run: Path) -> tuple[list[saved.SavedBatch], list[tuple[str, str]], list[str]]:
    """First and last saved batch, links to their X-rays, and what could not be read."""
    files = sorted((run / "rollouts").glob("step-*.jsonl"))
    batches, links, notes = [], [], []
    for path in dict.fromkeys([*files[:1], *files[-1:]]):
        out = run / f"xray-{path.stem}.html"
        try:
            batch = saved.load_batch(path)
            write_page(path, out, group_to_show(batch))
        except ConfigError as error:
            notes.append(page.note(str(error), warn=True))
            continue
        batches.append(batch)
        size = f"{len(batch.rollouts)} rollouts of {len(set(batch.groups))} questions"
        links.append((out.name, f"X-ray of step {batch.step:,}: {size}"))
    return batches, links, notes


def group_to_show(batch: saved.SavedBatch) -> int | None:
    """None, for all, where that makes a page of ordinary size; else the group with the most different outcomes."""
    if sum(len(rollout.tokens) for rollout in batch.rollouts) <= MANY:
        return None
    outcomes = {g: [m.outcome for m in batch.measured if m.group == g] for g in batch.groups}
    return max(outcomes, key=lambda g: max(outcomes[g]) - min(outcomes[g]))


def flat(settings: dict, prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in settings.items():
        if isinstance(value, dict):
            found += flat(value, f"{prefix}{key}.")
        else:
            found.append((prefix + key, value if isinstance(value, str) else json.dumps(value)))
    return found
