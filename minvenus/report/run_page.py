"""A training run as one page: RUN/report.html, with links to X-rays of its first and last step.

    write_run_page("runs/igpo")        reads metrics.jsonl, run.json and rollouts/

The run need not be finished: a figure is drawn if its numbers were logged. Step 0 is the model
before training. Held-out exact match has a Wilson interval.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minvenus.config import ConfigError, read_json
from minvenus.evaluation.aggregate import wilson
from minvenus.files import read_jsonl, write_text
from minvenus.igpo.recipes import Recipe
from minvenus.report.curves import Series, line_plot
from minvenus.report.explain import recipe_name
from minvenus.report.page import Html, el, figure, figures, page, section, table
from minvenus.report.xray import write_page

SHARE = (0.0, 1.0)
BEFORE = "before_"                    # begins names of numbers from before the first update
LEDE = ("How the agent learned; step 0 is the model before training. A turn's gain is how much it "
        "raised the model's own log-probability of the true answer: what IGPO pays a turn for. "
        "The band of held-out exact match is its 95 % interval.")


@dataclass(frozen=True)
class Plot:
    title: str
    lines: dict[str, str]             # name in metrics.jsonl -> name in the legend
    unit: str
    caption: str
    covers: Sequence[float] = ()      # values that the y axis shows at least


PLOTS = [
    Plot("Right answers",
         {"outcome": "training", "test_exact_match": "held out, exact match"},
         "share of right answers",
         "Mean outcome of the training rollouts, and exact match on questions that are never "
         "trained on.", SHARE),
    Plot("Groups that teach nothing",
         {"groups_without_outcome_signal": "same outcome",
          "groups_without_any_signal": "no signal"},
         "share of groups",
         "Where all rollouts of a question end alike, GRPO learns nothing; IGPO still learns from "
         "their gains.", SHARE),
    Plot("Gain of a turn",
         {"gain_mean": "all", "gain_right": "right page", "gain_wrong": "wrong page"},
         "gain in log P(answer)",
         "How much a turn raised the model's own log-probability of the true answer: what IGPO "
         "rewards. It is honest if reading a right page earns more than reading a wrong one."),
    Plot("Turns", {"turns": "training", "test_turns": "held out"}, "turns per rollout",
         "Falling while accuracy falls too: the policy learns to stop early.", (0.0,)),
    Plot("Browse ratio", {"browse_correct": "right answers", "browse_wrong": "wrong answers"},
         "visits / calls",
         "Share of the tool calls that read a page, in rollouts that ended right and wrong.",
         SHARE),
    Plot("Malformed turns", {"malformed": "training", "test_malformed": "held out"},
         "share of turns", "Turns that break a rule of the format.", SHARE),
    Plot("Right pages", {"right_pages": "training", "test_right_pages": "held out"},
         "share of the needed pages",
         "Toy web only: how much of the chain of pages was found.", SHARE),
    Plot("Entropy", {"entropy": "sampled tokens"}, "nats per token",
         "How undecided the policy is. Near 0 it explores no more."),
    Plot("Distance to the start", {"kl": "KL to the start model"}, "nats per token",
         "Grows slowly in a healthy run."),
    Plot("Gradient", {"grad_norm": "norm before clipping"}, "norm",
         "Spikes are worth a look at the step's X-ray."),
    Plot("IG-Scale", {"scale": "s"}, "factor",
         "Near 0: gains without any spread silence the rest of the batch."),
]


def write_run_page(run_folder) -> Path:
    run = Path(run_folder)
    rows = read_jsonl(run / "metrics.jsonl")
    if not rows:
        raise ConfigError(f"{run} has no metrics.jsonl with a finished step: not a training run, "
                          "or one that has just begun")
    settings = read_json(run / "run.json")
    rows = with_step_0(rows)
    drawings = [plotted(plot, rows, settings["evaluate_questions"]) for plot in PLOTS]
    values = [(key, json.dumps(value)) for key, value in settings.items()]
    parts = [
        xrays(run),
        section("Curves", figures(drawings)),
        section("Settings", table(["setting", "value"], values)),
    ]

    facts = [
        ("steps", f"{rows[-1]['step']:,}"),
        ("recipe", recipe_name(Recipe(**settings["recipe"]))),
    ]
    document = page(f"Run {run.resolve().name}", parts, LEDE, facts, "training run")
    return write_text(run / "report.html", document)


def with_step_0(rows: list[dict]) -> list[dict]:
    """The numbers of the model before training, which stand in the first row, as their own row."""
    before = {}
    for key, value in rows[0].items():
        if key.startswith(BEFORE):
            before[key.removeprefix(BEFORE)] = value
    return [{"step": 0, **before}, *rows]


def curve(rows: list[dict], key: str) -> dict[int, float]:
    """Step -> number, where it was logged."""
    return {row["step"]: row[key] for row in rows if row.get(key) is not None}


# ------------------------------------------------------------------------------------------ figures


def plotted(plot: Plot, rows: list[dict], held_out: int) -> Html | None:
    """The plot with a line for each of its numbers that was logged; nothing if none was."""
    lines = []
    for key, name in plot.lines.items():
        points = curve(rows, key)
        if not points:
            continue
        line = Series(name, list(points), list(points.values()))
        if key == "test_exact_match":
            bounds = [wilson(share * held_out, held_out) for share in line.y]
            line = Series(name, line.x, line.y, *zip(*bounds, strict=True))
        lines.append(line)
    if not lines:
        return None
    drawing = line_plot(lines, plot.title, "step", plot.unit, plot.covers)
    return figure(drawing, plot.caption)


def xrays(run: Path) -> Html | None:
    """Write X-rays of the first and the last saved batch; links to them, or what went wrong."""
    files = sorted((run / "rollouts").glob("step-*.jsonl"))
    links = []
    for path in dict.fromkeys([*files[:1], *files[-1:]]):
        try:
            out = write_page(path, run / f"xray-{path.stem}.html")
            links.append(el("p", el("a", f"X-ray of {path.stem}", href=out.name)))
        except ConfigError as error:
            links.append(el("p", str(error), class_="warning"))
    words = "Rollouts turn by turn: what each turn was paid, and how that came about."
    return section("Look inside", links, words) if links else None
