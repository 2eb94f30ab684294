"""Peak memory of a piece of code above what stood before it, in a process of its own."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
{setup}
def peak():  # of this program alone: getrusage would begin with the parent's peak
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
open("/proc/self/clear_refs", "w").write("5")  # forget the peak of the setup
before = peak()
{run}
print(peak() - before)
"""


def peak_above(setup, run):
    """Bytes that `run` needed at its peak above what `setup` left.

    `setup` calls the code once, small, to load its libraries.
    """
    if not os.path.exists("/proc/self/clear_refs"):
        pytest.skip("peak memory is read from /proc, which this system does not have")
    command = [sys.executable, "-c", SCRIPT.format(setup=setup, run=run)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)
