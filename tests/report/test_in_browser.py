"""The pages in a real browser, Chromium without a window: they fit, and nothing on them runs or is
loaded."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from docs.make_pictures import BROWSERS
from minvenus.agent.record import rollout_to_json
from minvenus.igpo.recipes import Recipe
from minvenus.report.page import digest
from minvenus.report.run_page import write_run_page
from minvenus.report.xray import write_page
from tests.report.examples import HOSTILE, group_of_four, hostile_rollout, saved_batch, xray
from tests.report.test_run_page import ROW, log
from tests.report.test_source import MADE, SCORER

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--enable-logging=stderr",
    "--window-size=1300,900",
    "--virtual-time-budget=3000",
    "--dump-dom",
)
# A page is shown in a frame, because a window has a least width. It tells the window what it sees.
WINDOW = """<!doctype html>
<iframe src="{name}" style="width: {width}px; height: 800px"></iframe>
<pre id="told"></pre>
<script>onmessage = ({{ data }}) => document.getElementById("told").textContent = data</script>"""
PROBE = "addEventListener('load', () => parent.postMessage(JSON.stringify({}), '*'))"
OPEN_ALL = "document.querySelectorAll('details').forEach(d => { d.open = true; })"


def look(
    path: Path, expression: str, width: int = 1200, dark: bool = False
) -> tuple[Any, list[str]]:
    """The value of a JavaScript expression in the page when it has loaded, and what the console
    says. Only this one script is added to the page's policy."""
    browser = next(filter(shutil.which, BROWSERS), None)
    if browser is None:
        assert not os.environ.get("CI"), "no browser"
        pytest.skip(f"none of {', '.join(BROWSERS)} is here (Debian: apt-get install chromium)")
    script = PROBE.format(expression)
    document = path.read_text(encoding="utf-8").replace(
        "'none';", f"'none'; script-src '{digest(script)}';", 1
    )
    probed = path.with_name("probed.html")
    probed.write_text(
        document.replace("<title>", f"<script>{script}</script><title>", 1), encoding="utf-8"
    )
    window = path.with_name("window.html")
    window.write_text(WINDOW.format(name=probed.name, width=width))
    command = [
        browser,
        *FLAGS,
        f"--user-data-dir={path.parent / 'profile'}",
        f"--blink-settings=preferredColorScheme={int(not dark)}",
        window.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    told = re.search('<pre id="told">(.*?)</pre>', done.stdout, re.S)
    assert told and told[1], done.stderr
    return json.loads(html.unescape(told[1])), re.findall(r"CONSOLE.*?\] (.*)", done.stderr)


def test_pages_of_every_kind_fit_a_wide_and_a_narrow_window_without_a_complaint(tmp_path):
    (tmp_path / "in.json").write_text(json.dumps(rollout_to_json(MADE)))
    log(tmp_path / "run", [ROW, ROW | {"test_exact_match": 0.5}], evaluate_questions=10)
    pages = [
        xray(tmp_path / "batch", group_of_four()),
        write_run_page(tmp_path / "run"),
        write_page(tmp_path / "in.json", tmp_path / "scored.html", scorer=SCORER),
    ]
    see = (
        f"({OPEN_ALL}, [document.documentElement.scrollWidth, "
        "getComputedStyle(document.body).backgroundColor, "
        "document.querySelector('main').innerText])"
    )
    for path in pages:
        for width, dark in ((1200, False), (380, True)):
            (reached, ground, text), console = look(path, see, width, dark)
            assert reached <= width and console == [], path
            assert ground == ("rgb(18, 21, 26)" if dark else "rgb(247, 247, 245)")
            assert len(text) > 500 and not re.search(r"\b(None|nan|undefined)\b", text)


def test_a_number_has_the_colour_of_its_advantage(tmp_path):
    batch = group_of_four()
    rollouts = [sample.rollout for sample in batch.samples]
    alike = saved_batch(rollouts, [0] * 4, [1.0] * 4, Recipe.paper())  # GRPO pays nothing
    see = f"""({OPEN_ALL}, [...document.querySelectorAll(".strip i:not(.malformed)")].map(turn => [
      turn.className, getComputedStyle(turn).backgroundColor, turn.title]))"""
    turns, console = look(xray(tmp_path, alike), see)
    colours = {name: {colour for kind, colour, _ in turns if kind == name} for name, *_ in turns}
    assert {title for name, _, title in turns if name == "none"} >= {"0"} and console == []
    assert all(len(found) == 1 for found in colours.values())
    assert len(set.union(*colours.values())) == len(colours) == 6


def test_hostile_text_does_nothing_and_even_html_that_gets_in_can_neither_run_nor_load_anything(
    tmp_path,
):
    """The page's policy is the second wall, as if the escaping had failed."""
    made = hostile_rollout()
    path = xray(tmp_path, saved_batch([made, made], [0, 0], [1.0, 0.0], Recipe.paper()))
    see = """[window.hit ?? null, getComputedStyle(document.body).display,
      document.querySelector(".observation .verbatim").textContent,
      [...document.querySelectorAll("*")].flatMap(e => [...e.attributes].map(a => a.name))
        .filter(a => /^on/.test(a)),
      document.querySelectorAll("script, img, iframe, textarea, object").length]"""
    found, console = look(path, see)
    assert (
        found == [None, "block", " ".join(HOSTILE), [], 1] and console == []
    )  # one script, the test's
    injected = (
        "<script>window.hit = 1</script>",
        "<img src='data:,' onerror='window.hit = 2'>",
        "<iframe src='javascript:parent.hit=3'></iframe>",
        "<img src='http://localhost:9/a.png'>",
        "<link rel=stylesheet href='http://localhost:9/a.css'>",
        "<style>body { display: none }</style>",
    )
    document = path.read_text(encoding="utf-8")
    path.write_text(
        document.replace("</header>", "</header>" + "".join(injected), 1), encoding="utf-8"
    )
    found, console = look(path, see)
    assert found[:2] == [None, "block"]
    assert len(console) >= 6 and all("Content Security Policy" in line for line in console), console
