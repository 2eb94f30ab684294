"""The page of the credit lab: a plot of success and one of turns under each gain, and the same numbers as tables."""

from html import escape

from minvenus.experiments.lab.config import LabConfig
from minvenus.experiments.lab.credit import METHODS
from minvenus.experiments.lab.tables import Result, cells, describe, setting, shown_steps
from minvenus.report.curves import Series, line_plot

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 74rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .8rem; text-align: right; border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
th:first-child, td:first-child { text-align: left; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; }
.plots svg { max-width: 100%; height: auto; }
.scroll { overflow-x: auto; }
"""


def page(config: LabConfig, results: dict[str, dict[str, Result]]) -> str:
    meanings = "".join(f"<li><b>{escape(name)}</b>: {escape(METHODS[name][0])}</li>" for name in config.method_names())
    sections = "".join(section(config, name, describe(world), results[name]) for name, world in config.worlds().items())
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>The credit lab</title>\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style></head>\n'
            f"<body><h1>The credit lab</h1>\n<p>{escape(setting(config))}.</p>\n<ul>{meanings}</ul>\n{sections}</body></html>\n")


def section(config: LabConfig, name: str, description: str, results: dict[str, Result]) -> str:
    success = plot(config, "success", results, f"Correct answers, gains {name}", "share of correct answers", (0.0, 1.0))
    turns = plot(config, "turns", results, f"Turns, gains {name}", "mean turns per rollout", (0.0, 0.0))
    return (f'<h2>{escape(f"Gains {name}")}</h2>\n<p>{escape(description)}. Bands: one standard deviation between seeds.</p>\n'
            f'<div class="plots">{success}\n{turns}</div>\n<div class="scroll">{html_table(config, results)}</div>\n')


def plot(config: LabConfig, what: str, results: dict[str, Result], title: str, label: str, covers: tuple[float, float]) -> str:
    steps = list(range(config.steps))
    series = []
    for method, result in results.items():
        mean, spread = result.mean_and_spread(what)
        low, high = mean - spread, mean + spread
        if what == "success":                       # a share lies in [0, 1], and so does what a reader should believe of it
            low, high = low.clip(0, 1), high.clip(0, 1)
        series.append(Series(method, steps, mean.tolist(), low.tolist(), high.tolist()))
    return line_plot(series, title, "step (updates)", label, covers=covers)


def html_table(config: LabConfig, results: dict[str, Result]) -> str:
    steps = shown_steps(config.steps)
    head = "".join(f"<th>{escape(text)}</th>" for text in ["method", *(f"step {s}" for s in steps), f"turns at {steps[-1]}"])
    rows = "".join(f"<tr><td>{escape(method)}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells(result, steps))}</tr>\n"
                   for method, result in results.items())
    return f"<table><tr>{head}</tr>\n{rows}</table>"
