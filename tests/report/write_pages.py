"""python -m tests.report.write_pages: store what the pages say, for the tests that compare it."""

import tempfile
from pathlib import Path

from minvenus.agent.record import rollout_to_json
from minvenus.report.xray import write_page
from tests.experiments.test_results import small_page
from tests.report.examples import PAGES, words_of, xray
from tests.report.test_run_page import every_number
from tests.report.test_source import MADE, SCORER, saved
from tests.report.test_xray import small_batch

with tempfile.TemporaryDirectory() as folder:
    pages = {
        "run": every_number(Path(folder) / "a run"),
        "xray": xray(Path(folder), small_batch()).read_text(encoding="utf-8"),
        "comparison": small_page(),
    }
    trajectory = saved(Path(folder), rollout_to_json(MADE))
    for name, scorer in (("trajectory", None), ("scored", SCORER)):
        page = write_page(trajectory, Path(folder) / "x.html", scorer=scorer)
        pages[name] = page.read_text(encoding="utf-8")
for name, document in pages.items():
    (PAGES / f"{name}.txt").write_text(words_of(document), "utf-8")
