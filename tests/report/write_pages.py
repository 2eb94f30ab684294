"""python -m tests.report.write_pages: store what the pages say, for two tests that compare it."""

import tempfile
from pathlib import Path

from tests.report.examples import PAGES, words_of, xray
from tests.report.test_run_page import every_number
from tests.report.test_xray import small_batch

with tempfile.TemporaryDirectory() as folder:
    PAGES.mkdir(exist_ok=True)
    run = every_number(Path(folder) / "a run")
    (PAGES / "run.txt").write_text(words_of(run), "utf-8")
    (PAGES / "xray.txt").write_text(words_of(xray(Path(folder), small_batch())), "utf-8")
