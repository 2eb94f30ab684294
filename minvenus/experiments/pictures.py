"""make pictures: the pictures of the README and docs/, from a run of `make demo` and, if there is one, `make compare`.

    rollout    log P(answer) along the turns of one rollout, what each turn gained, and its advantage
    xray       the reward X-ray page of the same batch, as a browser shows it
    examples   what each recipe makes of the classic situations of the calculator
    curves     accuracy along the training of each compared method, with bands
    lab-front, theory-front       what front-loaded gains do, in the lab and in expectation

SVG files come twice, for light and for dark pages. The same run gives the same files; only xray.png depends on the
browser.
"""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from minvenus.config import ConfigError, check, read_json
from minvenus.experiments import lab, theory
from minvenus.experiments.calculator import EXAMPLES, measured
from minvenus.experiments.compare import CompareConfig, read_runs
from minvenus.experiments.results import ACCURACY, plot_of
from minvenus.files import write_text
from minvenus.flags import build
from minvenus.igpo.credit import Credit, assign_credit
from minvenus.igpo.recipes import RECIPES, Recipe
from minvenus.report.curves import COLOURS, label, svg
from minvenus.report.page import Html, el
from minvenus.report.saved import SavedBatch, load_batch
from minvenus.report.xray import write_page
from minvenus.types import setting

INK = {"light": "#1c2230", "dark": "#e4e7ec"}
LAB, THEORY = lab.LabConfig(), theory.TheoryConfig()
PLUS, MINUS = COLOURS[-2:]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
STEP, LEFT, LEVEL = 74, 92, 250          # pixels: of a turn, before the first one, of advantage 0


@dataclass(frozen=True)
class PicturesConfig:
    """python -m minvenus.experiments pictures: the pictures of the README and docs/."""

    demo: str = setting("runs/demo", "the folder of `make demo`")
    compare: str = setting("runs/compare", "that of `make compare`; without it there are no curves")
    out: str = setting("docs/pictures", "where they go")

    def __post_init__(self):
        check(self)


def main(config: PicturesConfig) -> str:
    files = sorted((Path(config.demo) / "igpo" / "rollouts").glob("step-*.jsonl"))
    if not files:
        raise ConfigError(f"{config.demo} has no saved rollouts: run `make demo` first, or say where they are: --demo")
    batch = load_batch(files[0])
    credited = assign_credit(batch.samples, Recipe.paper())
    chosen = telling_rollout(credited)
    pictures = {"rollout": rollout_picture(batch, credited, chosen), "examples": examples_picture(),
                "lab-front": lab.picture("front", lab.train_all("front", LAB)),
                "theory-front": theory.picture("front", THEORY.group)}
    if curves := curves_picture(Path(config.compare)):
        pictures["curves"] = curves
    written = []
    for name, picture in pictures.items():
        for theme, ink in INK.items():
            coloured = picture.replace("<svg ", f'<svg color="{ink}" ', 1)
            written.append(write_text(Path(config.out) / f"{name}-{theme}.svg", coloured + "\n"))
    written.append(photograph(files[0], str(batch.samples[chosen].group), Path(config.out) / "xray.png"))
    return "\n".join(map(str, written))


def telling_rollout(credited: Credit) -> int:
    """Where the answer's value rises most, of those that have turns to encourage and turns to discourage."""
    def telling(i: int) -> tuple:
        advantages, values = credited.advantages[i], [v for v in credited.beliefs[i] if v is not None]
        return min(advantages) < -0.1 and max(advantages) > 0.1, max(values) - values[0] if values else 0.0, -i

    return max(range(len(credited.beliefs)), key=telling)


def rollout_picture(batch: SavedBatch, credited: Credit, i: int) -> Html:
    """Above, the value before each turn, with the gains of visits; below, a bar for every turn's advantage."""
    m, gains, advantages = batch.samples[i], credited.gains[i], credited.advantages[i]
    known = [(t, v) for t, v in enumerate(credited.beliefs[i]) if v is not None]
    low, high = min(v for _, v in known), max(v for _, v in known)
    top = {t: round(170 - 120 * (v - low) / (high - low or 1), 1) for t, v in known}
    line = " ".join(f"{LEFT + STEP * t},{y}" for t, y in top.items())
    parts: list[Html] = [label(8, 20, f"log P(answer): {m.rollout.question.text}", "start", font_weight="bold"),
                         el("polyline", points=line, fill="none", stroke=PLUS, stroke_width=2.5)]
    for t, v in known:
        parts.append(el("circle", cx=LEFT + STEP * t, cy=top[t], r=4, fill=PLUS))
        parts.append(label(LEFT + STEP * t, top[t] - 9, f"{v:.2f}".replace("-0.00", "0.00")))
    largest = max(map(abs, advantages)) or 1.0
    parts.append(label(8, LEVEL + 4, "advantage", "start"))
    for t, (kind, a) in enumerate(zip(m.rollout.kinds, advantages, strict=True)):
        x, height = LEFT + STEP * t + 14, round(40 * abs(a) / largest, 1)
        parts.append(el("rect", x=x, y=LEVEL - height if a > 0 else LEVEL, width=STEP - 28, height=height,
                        fill=PLUS if a > 0 else MINUS))
        middle = x + (STEP - 28) / 2
        gain = f"gain {gains[t]:+.2f}" if gains[t] is not None else ""
        parts.append(label(middle, 190, gain))
        parts.append(label(middle, LEVEL - height - 5 if a > 0 else LEVEL - 5, f"{a:+.2f}"))
        parts.append(label(middle, LEVEL + 58, kind + (" (malformed)" if m.rollout.malformed[t] else "")))
    width = LEFT + STEP * len(m.rollout.kinds) + 20
    parts.append(el("path", d=f"M{LEFT} {LEVEL}H{width - 20}", stroke="currentColor", stroke_opacity=0.4))
    title = "one rollout: how probable the true answer became, and what each turn was paid"
    return svg(width, LEVEL + 74, title, parts)


def examples_picture() -> Html:
    """A row for each rollout of each example, a column for each recipe: turns as letters, coloured by advantage."""
    parts, y = [], 24
    for name, (_, rollouts) in EXAMPLES.items():
        batch = measured([(name, rollout) for rollout in rollouts])
        parts.append(label(8, y, name, "start", font_weight="bold"))
        for column, (recipe, settings) in enumerate(RECIPES.items()):
            x = 130 + 165 * column
            if y == 24:
                parts.append(label(x, 12, recipe, "start"))
            record = assign_credit(batch, settings).record
            largest = max(abs(a) for row in record.advantages for a in row) or 1.0
            for i, (m, row) in enumerate(zip(batch, record.advantages, strict=True)):
                for t, (kind, a) in enumerate(zip(m.rollout.kinds, row, strict=True)):
                    place = {"x": x + 26 * t, "y": y + 4 + 26 * i, "width": 23, "height": 22, "rx": 4}
                    strength = round(0.15 + 0.6 * abs(a) / largest, 3) if abs(a) > 1e-9 else 0.0
                    parts.append(el("rect", **place, fill=PLUS if a > 0 else MINUS, fill_opacity=strength,
                                    stroke=MINUS if m.rollout.malformed[t] else "currentColor",
                                    stroke_width=2 if m.rollout.malformed[t] else 0.4))
                    parts.append(label(x + 26 * t + 11.5, y + 19 + 26 * i, kind[0].upper()))
        y += 26 * len(batch) + 30
    return svg(130 + 165 * len(RECIPES), y, "what each recipe teaches: blue turns become more probable, orange less",
               parts)


def curves_picture(folder: Path) -> Html | None:
    """Of a comparison whose runs have all ended."""
    if not (folder / "run.json").exists():
        return None
    config = build(CompareConfig, read_json(folder / "run.json") | {"out": str(folder)}, {})
    return plot_of(read_runs(config), ACCURACY)


def photograph(rollouts: Path, group: str, out: Path) -> Path:
    """The X-ray of a group in a browser without a window."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise ConfigError(f"no browser for the picture of the X-ray: install one of {', '.join(BROWSERS)}")
    with tempfile.TemporaryDirectory() as folder:
        page = write_page(rollouts, Path(folder) / "xray.html", group=group)
        out.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                        "--window-size=1120,1460", f"--screenshot={out.resolve()}", page.as_uri()],
                       check=True, capture_output=True, timeout=120)
    return out
