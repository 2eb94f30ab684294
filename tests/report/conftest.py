"""One browser for all tests of the pages."""

import os

import pytest

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
