"""The page of a comparison: the table, learning curves with intervals, and what the methods did to behaviour."""

from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from minvenus.experiments.audit import run_gains
from minvenus.experiments.results import Outcome, differences, head, mean_curve, rows
from minvenus.files import write_text
from minvenus.report.curves import Series, line_plot
from minvenus.report.page import figure, figures, page, section, table

PLOTS = (
    ("test_exact_match", "Accuracy on held-out questions", "share right",
     "One sampled run per question; bands are 95 % intervals over the seeds."),
    ("test_right_pages", "Right pages found", "share of the path",
     "Of the pages on the question's path, those that were opened."),
    ("test_turns", "Turns per rollout", "turns",
     "A search and a visit per hop and the answer are the least that a question needs."),
    ("groups_without_outcome_signal", "Collapsed groups", "share of groups",
     "Groups whose rollouts all ended alike: GRPO learns nothing from them."),
    ("gain_right", "Gain of right visits", "log-prob per answer token",
     "As the policy in training scores them; GRPO scores none."),
    ("gain_wrong", "Gain of wrong visits", "log-prob per answer token",
     "Honest gains stay below those of right visits."),
)
PHASES = ("rollout", "scoring", "grading", "update", "evaluation")


def write_page(folder: Path, config, outcomes: dict[str, list[Outcome]]) -> Path:
    seconds = [[method, *(f"{sum(run.seconds.get(phase, 0.0) for run in runs) / len(runs):.0f}" for phase in PHASES)]
               for method, runs in outcomes.items()]
    drawn = [figure(line_plot(lines, name, "steps", unit), caption) for key, name, unit, caption in PLOTS
             for lines in [series(outcomes, key)] if any(one.x for one in lines)]
    parts = [
        section("Result", [table(head(config.at), rows(outcomes),
                                 "mean ± half of the 95 % interval over the seeds (Student's t)")],
                "The three numbers were fixed before any run. All methods start from the same checkpoint and sample as many "
                "rollouts."),
        section("Differences", [table(["methods", "of", "difference"], [[*names, str(d)] for *names, d in differences(outcomes)],
                                      "mean ± half of the 95 % interval over the seeds")],
                "Paired by seed: runs of a seed have the same questions."),
        section("Curves", [figures(drawn)]),
        *gains_by_hop(folder, outcomes),
        section("Where the time goes", [table(["method", *(f"{phase}, s" for phase in PHASES)], seconds,
                                              "seconds per run, mean")]),
    ]
    lede = f"Seeds per method: {config.seeds}; {config.steps} steps of {config.questions} questions x {config.group} rollouts."
    facts = [(key, str(value)) for key, value in asdict(config).items() if value is not None]
    return write_text(folder / "report.html", page("Methods compared", parts, lede, facts, kind="minvenus comparison"))


def gains_by_hop(folder: Path, outcomes: dict[str, list[Outcome]]) -> list[str]:
    """Mean gain of right visits at each hop, over all seeds, from the first and the last rollouts that the runs have saved."""
    lines: list[list[str]] = []
    for method, runs in outcomes.items():
        for name, place in (("first", 0), ("last", -1)):
            found: dict[int, list[float]] = {}
            for run in runs:
                files = sorted((folder / f"{method}-{run.seed}" / "rollouts").glob("step-*.jsonl"))
                for (kind, hop), gains in (run_gains(files[place]) if files else {}).items():
                    found.setdefault(hop, []).extend(gains if kind == "right" else [])
            if any(found.values()):
                lines.append([method, name, *(f"{fmean(found[hop]):+.2f}" if found.get(hop) else "" for hop in range(1, 5))])
    names = ["method", "saved step", *(f"hop {hop}" for hop in range(1, 5))]
    return [section("Gains by hop", [table(names, lines, "mean gain of right visits, log-prob per answer token")],
                    "Gains that fall from hop to hop make it pay to stop early.")] if lines else []


def series(outcomes: dict[str, list[Outcome]], key: str) -> list[Series]:
    """A line per method, over the steps at which every run has the metric; with several runs, bands. A method without such a step
    has an empty one: the others keep the colours that they have in other plots."""
    lines = []
    for method, runs in outcomes.items():
        steps, points = mean_curve(runs, key)
        several = len(runs) > 1
        lines.append(Series(method, steps, [p.mean for p in points], [p.mean - p.half for p in points] if several else None,
                            [p.mean + p.half for p in points] if several else None))
    return lines
