"""Every mutant fits the code and names a test. That the test notices it: `make mutants`."""

import pytest

from minvenus import console
from tests.mutants.mutant import StaleMutant, applied, check_test, edited_codes, mutant
from tests.mutants.run import all_mutants, main, outcome_of

# the known bugs up to those that slipped past the first suite, and those past the second one
LISTED = {*range(1, 52), *range(63, 74)}
CLOCK = "minvenus.console:clock"
HOURS = (CLOCK, "if hours", "if not hours")


def test_every_edit_still_fits_the_code_and_every_listed_bug_has_a_mutant(capsys):
    assert main(["--check"]) == 0, capsys.readouterr().out
    assert {m.bug for _, m in all_mutants()} >= LISTED


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ((CLOCK, "no such line", "x"), "0 places read 'no such line'"),
        ((CLOCK, "e", "x"), "places read 'e', not one"),
        (("minvenus.console:no_such", "x", "y"), "does not exist"),
        (("minvenus.no_such:clock", "x", "y"), "no module"),
        (("minvenus.console:Progress", "x", "y"), "is no function"),
    ],
)
def test_an_edit_that_does_not_fit_is_an_error(edit, message):
    with pytest.raises(StaleMutant, match=message):
        edited_codes(mutant(1, "stale", "-", edit))


@pytest.mark.parametrize("test", ["no_such.py", "test_console.py::test_nothing"])
def test_a_test_that_does_not_exist_is_an_error(test):
    with pytest.raises(StaleMutant, match="there is no"):
        check_test(mutant(1, "untested", test))


def test_an_edit_is_in_functions_that_were_imported_before_and_is_gone_afterwards():
    clock = console.clock
    with applied(mutant(1, "hours", "-", HOURS)):
        assert clock(5) == "0:00:05"
    assert clock(5) == "0:05"


@pytest.mark.parametrize(
    ("edit", "test", "outcome"),
    [
        (HOURS, "test_times_worked_by_hand", "killed by"),
        (HOURS, "test_columns_of_a_table_are_aligned", "ALIVE after"),
        ((CLOCK, "int(seconds)", "no_such"), "test_times_worked_by_hand", "ERROR"),
        ((CLOCK, "no such line", "x"), "test_times_worked_by_hand", "STALE"),
    ],
)
def test_killed_is_only_what_makes_its_test_fail(edit, test, outcome):
    assert outcome in outcome_of(mutant(1, "clock", f"test_console.py::{test}", edit))


def test_words_that_no_mutant_has_run_no_test(capsys):
    assert main(["no such mutant"]) == 1
    assert capsys.readouterr().out == "no mutant has the words no such mutant\n"
