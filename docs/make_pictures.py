"""make pictures: the pictures of the README and docs/.

    python -m docs.make_pictures [DEMO [COMPARE [OUT]]]      runs/demo, runs/compare, docs/pictures

    rollout         log P(truth) along one rollout of the demo, its gains and advantages
    xray            the reward X-ray page of the same batch, as a browser shows it
    real            docs/real.html, the same of a real language model
    examples        what each recipe makes of the classic situations of the calculator
    curves          accuracy of each method of `make compare`, with bands, if there is such a run
    lab-front, theory-front       what front-loaded gains do, in the lab and in expectation

SVG files come twice, for light and for dark pages. The same run gives the same files; only PNG
files depend on the browser.
"""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from minvenus.config import read_json
from minvenus.experiments import lab
from minvenus.experiments.calculator import EXAMPLES, read_samples
from minvenus.experiments.compare import CompareConfig, read_runs
from minvenus.experiments.results import ACCURACY, plot_of
from minvenus.files import write_text
from minvenus.igpo.credit import assign_credit
from minvenus.igpo.recipes import RECIPES, Recipe
from minvenus.report.curves import Series, label, line_plot, svg
from minvenus.report.explain import recipe_name
from minvenus.report.page import Html, el
from minvenus.report.saved import SavedBatch, load_batch
from minvenus.report.xray import write_page
from tests.igpo import enumeration

INK = {"light": "#1c2230", "dark": "#e4e7ec"}
PLUS, MINUS = "#2f7fd6", "#d9541e"       # of advantages above and below 0
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REAL = Path(__file__).parent / "real.html"
LAB = lab.LabConfig()
GROUP = 3                                # rollouts of an enumerated group


def main(demo="runs/demo", compare="runs/compare", out="docs/pictures") -> None:
    files = sorted(Path(demo).glob("igpo/rollouts/step-*.jsonl"))
    if not files:
        sys.exit(f"{demo} has no saved rollouts: run `make demo` first, or say where they are")
    batch = load_batch(files[0])
    i = telling_rollout(batch)
    pictures = {
        "rollout": rollout_picture(batch, i),
        "examples": examples_picture(),
        "lab-front": lab.picture("front", lab.train_all("front", LAB)),
        "theory-front": theory_picture(),
    }
    if (Path(compare) / "run.json").exists():
        pictures["curves"] = curves_picture(Path(compare))
    for name, picture in pictures.items():
        for theme, ink in INK.items():
            coloured = picture.replace("<svg ", f'<svg color="{ink}" ', 1)
            print(write_text(Path(out) / f"{name}-{theme}.svg", coloured + "\n"))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "xray.html"
        write_page(files[0], page, group=str(batch.samples[i].group))
        print(photograph(page, Path(out) / "xray.png"))
    print(photograph(REAL, Path(out) / "real.png"))


def telling_rollout(batch: SavedBatch) -> int:
    """Where the belief rises most, of those with turns to encourage and turns to discourage."""

    def rank(i: int) -> tuple:
        advantages = batch.credit.advantages[i]
        beliefs = [belief for belief in batch.credit.beliefs[i] if belief is not None]
        rise = max(beliefs) - beliefs[0] if beliefs else 0.0
        return min(advantages) < -0.05 and max(advantages) > 0.1, rise

    return max(range(len(batch.samples)), key=rank)


def method_name(recipe: Recipe) -> str:
    """The recipe's name; the demo's has no penalty."""
    name = recipe_name(recipe)
    if name in RECIPES:
        return name
    return recipe_name(replace(recipe, format_penalty=1.0)) + " - penalty"


def rollout_picture(batch: SavedBatch, i: int) -> Html:
    """Above, the belief before each turn and the gains; below, a bar for each advantage."""
    step, left, zero = 74, 92, 250          # pixels: of a turn, before the first, advantage 0
    rollout = batch.samples[i].rollout
    gains, advantages = batch.credit.gains[i], batch.credit.advantages[i]
    beliefs = {t: v for t, v in enumerate(batch.credit.beliefs[i]) if v is not None}
    low, high = min(beliefs.values()), max(beliefs.values())

    parts: list[Html] = []
    points = []
    for t, belief in beliefs.items():
        x = left + step * t
        y = round(170 - 120 * (belief - low) / (high - low or 1), 1)
        points.append(f"{x},{y}")
        parts.append(el("circle", cx=x, cy=y, r=4, fill=PLUS))
        parts.append(label(x, y - 9, f"{belief:.2f}".replace("-0.00", "0.00")))
    line = " ".join(points)
    parts.append(el("polyline", points=line, fill="none", stroke=PLUS, stroke_width=2.5))

    largest = max(map(abs, advantages)) or 1.0
    for t, (turn, advantage) in enumerate(zip(rollout.turns, advantages, strict=True)):
        x = left + step * t + 14
        width = step - 28
        height = round(40 * abs(advantage) / largest, 1)
        top = zero - height if advantage > 0 else zero
        colour = PLUS if advantage > 0 else MINUS
        parts.append(el("rect", x=x, y=top, width=width, height=height, fill=colour))
        middle = x + width / 2
        if gains[t] is not None:
            parts.append(label(middle, 190, f"gain {gains[t]:+.2f}"))
        parts.append(label(middle, min(top, zero) - 5, f"{advantage:+.2f}"))
        parts.append(label(middle, zero + 58, turn.kind + " (malformed)" * turn.malformed))

    width = left + step * len(rollout.turns) + 20
    heading = f"log P(truth): {rollout.question.text}  (recipe {method_name(batch.recipe)})"
    parts.append(label(8, 20, heading, "start", font_weight="bold"))
    parts.append(label(8, zero + 4, "advantage", "start"))
    axis = f"M{left} {zero}H{width - 20}"
    parts.append(el("path", d=axis, stroke="currentColor", stroke_opacity=0.4))
    title = "one rollout: how probable the truth became, and the advantage of each turn"
    return svg(width, zero + 74, title, parts)


def examples_picture() -> Html:
    """A row for each rollout of each example, a column for each recipe: turns as letters, coloured
    by advantage."""
    parts = []
    y = 24
    for column, recipe in enumerate(RECIPES):
        parts.append(label(130 + 165 * column, 12, recipe, "start"))
    for name, (_, rollouts) in EXAMPLES.items():
        parts.append(label(8, y, name, "start", font_weight="bold"))
        samples = read_samples([(name, rollout) for rollout in rollouts])
        for column, recipe in enumerate(RECIPES.values()):
            advantages = assign_credit(samples, recipe).advantages
            largest = max(max(map(abs, row)) for row in advantages)
            for i, sample in enumerate(samples):
                for t, turn in enumerate(sample.rollout.turns):
                    share = advantages[i][t] / (largest or 1.0)
                    x = 130 + 165 * column + 26 * t
                    parts += box(x, y + 4 + 26 * i, turn.kind, share, turn.malformed)
        y += 26 * len(samples) + 30
    title = "what each recipe teaches: blue turns become more probable, orange less"
    return svg(130 + 165 * len(RECIPES), y, title, parts)


def box(x: int, y: int, kind: str, share: float, malformed: bool) -> list[Html]:
    """A turn; `share` is its advantage, in units of the largest."""
    rect = el(
        "rect", x=x, y=y, width=23, height=22, rx=4,
        fill=PLUS if share > 0 else MINUS,
        fill_opacity=round(0.15 + 0.6 * abs(share), 3) if abs(share) > 1e-9 else 0.0,
        stroke=MINUS if malformed else "currentColor",
        stroke_width=2 if malformed else 0.4,
    )
    return [rect, label(x + 11.5, y + 15, kind[0].upper())]


def theory_picture() -> Html:
    """The pushes to go on at each hop, by enumeration, a line for each recipe."""
    pushes, _ = enumeration.compare(enumeration.World.of(enumeration.FRONT), GROUP)
    lines = [Series(name, range(1, len(row) + 1), row) for name, row in pushes.items()]
    unit = "push, in lengths of the truth"
    return line_plot(lines, "Push to go on, gains front", "hop", unit, (0.0,))


def curves_picture(folder: Path) -> Html:
    settings = read_json(folder / "run.json") | {"out": str(folder)}      # it may have been moved
    picture = plot_of(read_runs(CompareConfig(**settings)), ACCURACY)
    assert picture is not None              # every run has been evaluated
    return picture


def photograph(page: Path, out: Path) -> Path:
    """The top of a page in a browser without a window."""
    browsers = [name for name in BROWSERS if shutil.which(name)]
    if not browsers:
        sys.exit(f"no browser for the picture of the X-ray: install one of {', '.join(BROWSERS)}")
    command = [browsers[0], "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--window-size=1120,1460", f"--screenshot={out.resolve()}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return out


if __name__ == "__main__":
    main(*sys.argv[1:])
