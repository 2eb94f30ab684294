"""For all tests: an environment without services, hypothesis profiles, and a time limit.

HYPOTHESIS_PROFILE is `ci` (few examples, always the same), `dev` (few, random) or `thorough`
(many). A test that takes longer than two minutes fails with the stacks of all threads;
`@pytest.mark.seconds(600)` gives it more.
"""

import faulthandler
import os
import signal
import sys
import threading

import pytest
from hypothesis import HealthCheck, settings

# A shell starts background processes with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test asks a proxy or a service that the environment of the person who runs it names.
SERVICES = ("POLICY_", "JUDGE_", "SERPER_", "JINA_", "EXTRACT_", "REQUESTS_CA_BUNDLE")
for name in [*os.environ]:
    if name.startswith(SERVICES) or name.upper().endswith("_PROXY"):
        del os.environ[name]

common = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("ci", max_examples=40, derandomize=True, **common)
settings.register_profile("dev", max_examples=40, **common)
settings.register_profile("thorough", max_examples=1000, **common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

SECONDS = 120 if os.environ.get("HYPOTHESIS_PROFILE") != "thorough" else 3600


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Stop a test, fixtures included, when its time is over. The exception comes up wherever the
    main thread is."""
    mark = item.get_closest_marker("seconds")
    seconds = mark.args[0] if mark else SECONDS

    def too_long(*_):
        faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
        pytest.fail(f"took longer than {seconds} s", pytrace=True)

    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        return (yield)
    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
