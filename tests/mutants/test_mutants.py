"""Every mutant fits the code and is noticed by the test that is named for it."""

import subprocess
import sys
from pathlib import Path

import pytest

from minvenus.igpo import gain
from tests.mutants.mutant import StaleMutant, applied, edited_codes, mutant
from tests.mutants.run import all_mutants, main

ROOT = Path(__file__).resolve().parents[2]
LISTED = {*range(1, 52)}  # the known bugs up to those that slipped past the first suite
VALUE = "minvenus.igpo.gain:value"


def test_every_edit_still_fits_the_code_and_every_listed_bug_has_a_mutant():
    stale = []
    for m in all_mutants():
        try:
            edited_codes(m)
        except StaleMutant as error:
            stale.append(str(error))
    assert not stale
    assert {m.bug for m in all_mutants()} >= LISTED


@pytest.mark.parametrize(
    "edit, message",
    [
        ((VALUE, "no such line", "x"), "0 places read 'no such line'"),
        ((VALUE, "e", "x"), "places read 'e', expected one"),
        (("minvenus.igpo.gain:no_such", "x", "y"), "does not exist"),
        (("minvenus.igpo.gain:math", "x", "y"), "is no function"),
    ],
)
def test_an_edit_that_does_not_fit_is_an_error(edit, message):
    with pytest.raises(StaleMutant, match=message):
        edited_codes(mutant(1, "stale", "-", edit))


def test_an_edit_is_in_functions_that_were_imported_before_and_is_gone_afterwards():
    imported = gain.value
    with applied(mutant(1, "doubled", "-", (VALUE, "mean if gain", "2 * mean if gain"))):
        assert imported([1.0], "log_prob") == 2
    assert imported([1.0], "log_prob") == 1


def test_words_that_no_mutant_has_run_no_test(capsys):
    assert (
        main(["no such mutant"]) == 1
        and capsys.readouterr().out == "no mutant has the words no such mutant\n"
    )


@pytest.mark.seconds(900)
def test_every_mutant_is_killed_by_the_test_named_for_it():
    command = [sys.executable, "-m", "tests.mutants.run", "--skip-baseline"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
