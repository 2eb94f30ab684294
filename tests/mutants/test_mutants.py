"""The catalogue of mistakes fits the code, and every mistake is noticed."""

import subprocess
import sys
from pathlib import Path

import pytest

from minvenus.igpo import gain
from tests.mutants.catalogue import GAIN, MUTANTS, mutant
from tests.mutants.run import StaleMutant, applied, edited_source

ROOT = Path(__file__).resolve().parents[2]
LISTED = {*range(1, 17), 20, 21, 23, *range(33, 39), 40}          # the known bugs that live in the code under mutation


@pytest.mark.parametrize("m", MUTANTS, ids=lambda m: f"{m.bug} {m.says}")
def test_every_edit_still_fits_the_code(m):
    compile(edited_source(m), m.module, "exec")


def test_every_listed_bug_has_a_mutant():
    assert {m.bug for m in MUTANTS} == LISTED


def test_an_edit_that_no_longer_fits_is_an_error():
    with pytest.raises(StaleMutant, match="0 places read 'no such line'"):
        edited_source(mutant(1, "stale", GAIN, "-", ("no such line", "x")))


def test_a_mutant_changes_functions_that_are_already_imported_and_is_gone_afterwards():
    imported = gain.value
    with applied(mutant(1, "twice", GAIN, "-", ("return mean if kind", "return 2 * mean if kind"))):
        assert imported([-1.0], "log_prob") == -2.0
    assert imported([-1.0], "log_prob") == -1.0


def test_every_mutant_is_killed_by_the_test_named_for_it():
    done = subprocess.run([sys.executable, "-m", "tests.mutants.run"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
