"""One browser for all tests of the pages, and X-rays written to a folder of their own."""

import os
from itertools import count

import pytest

from minvenus.report.saved import path_of, save_batch
from minvenus.report.xray import write_page
from tests.report.browser import NAMES, Browser, find


@pytest.fixture(scope="session")
def browser():
    if find() is None:
        pytest.skip(f"no browser here: none of {', '.join(NAMES)} (Debian: apt-get install chromium)")
    started = Browser()
    try:
        started.__enter__()
    except (OSError, TimeoutError, RuntimeError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{find()} is there but does not start: {error}")
    yield started
    started.__exit__()


@pytest.fixture
def xray(tmp_path):
    number = count()

    def written(batch):
        folder = tmp_path / str(next(number))
        save_batch(folder, batch)
        return write_page(path_of(folder, batch.step), folder / "xray.html")
    return written
