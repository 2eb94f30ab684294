"""Every known bug of engines, put into our code, is noticed by the test that is named for it."""

import subprocess
import sys
from pathlib import Path

from tests.mutants.engine import MUTANTS

ROOT = Path(__file__).resolve().parents[2]


def test_every_engine_mutant_is_killed_by_its_test():
    assert {m.bug for m in MUTANTS} == set(range(26, 33))
    done = subprocess.run([sys.executable, "-m", "tests.mutants.engine"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
