"""Chromium without a window: what a page is like in a real browser."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from minvenus.report.page import digest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
         "--window-size=1300,900", "--virtual-time-budget=3000", "--dump-dom")
# A page is shown in a frame, because a window has a least width. It tells the window what it sees.
WINDOW = """<!doctype html><iframe src="{name}" style="width: {width}px; height: 800px"></iframe><pre id="told"></pre>
<script>onmessage = ({{ data }}) => document.getElementById("told").textContent = data</script>"""
PROBE = "addEventListener('load', () => parent.postMessage(JSON.stringify({}), '*'))"


def look(path: Path, expression: str, width: int = 1200, dark: bool = False) -> tuple[Any, list[str]]:
    """The value of a JavaScript expression in the page when it has loaded, and what the console says. Only this one
    script is added to the page's policy."""
    browser = next((found for name in NAMES if (found := shutil.which(name))), None)
    if browser is None:
        assert not os.environ.get("CI"), "no browser"
        pytest.skip(f"no browser here: none of {', '.join(NAMES)} (Debian: apt-get install chromium)")
    script = PROBE.format(expression)
    document = path.read_text(encoding="utf-8").replace("'none';", f"'none'; script-src '{digest(script)}';", 1)
    probed = path.with_name("probed.html")
    probed.write_text(document.replace("<title>", f"<script>{script}</script><title>", 1), encoding="utf-8")
    window = path.with_name("window.html")
    window.write_text(WINDOW.format(name=probed.name, width=width))
    command = [browser, *FLAGS, f"--user-data-dir={path.parent / 'profile'}",
               f"--blink-settings=preferredColorScheme={int(not dark)}",
               window.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    told = re.search('<pre id="told">(.*?)</pre>', done.stdout, re.S)
    assert told and told[1], done.stderr
    return json.loads(html.unescape(told[1])), re.findall(r"CONSOLE.*?\] (.*)", done.stderr)
