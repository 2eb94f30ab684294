"""python -m tests.report.write_pages: store what the pages say, for the tests that compare it."""

import tempfile
from pathlib import Path

from tests.experiments.test_results import small_page
from tests.report.examples import PAGES, words_of, xray
from tests.report.test_run_page import every_number
from tests.report.test_xray import small_batch

with tempfile.TemporaryDirectory() as folder:
    pages = {
        "run": every_number(Path(folder) / "a run"),
        "xray": xray(Path(folder), small_batch()).read_text(encoding="utf-8"),
        "comparison": small_page(),
    }
for name, document in pages.items():
    (PAGES / f"{name}.txt").write_text(words_of(document), "utf-8")
