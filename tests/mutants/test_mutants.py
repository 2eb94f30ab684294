"""Every mutant fits the code and is noticed by the test that is named for it."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from minvenus.igpo import gain
from tests.mutants.mutant import StaleMutant, applied, edited_codes, mutant
from tests.mutants.run import all_mutants

ROOT = Path(__file__).resolve().parents[2]
LISTED = {*range(1, 52)}          # the known bugs up to those that slipped past the first suite
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


@pytest.mark.parametrize("edit, message", [
    ((VALUE, "no such line", "x"), "0 places read 'no such line'"),
    ((VALUE, "e", "x"), "places read 'e', expected one"),
    (("minvenus.igpo.gain:no_such", "x", "y"), "does not exist"),
    (("minvenus.igpo.gain:math", "x", "y"), "is no function"),
])
def test_an_edit_that_does_not_fit_is_an_error(edit, message):
    with pytest.raises(StaleMutant, match=message):
        edited_codes(mutant(1, "stale", "-", edit))


def test_a_mutant_changes_functions_that_are_already_imported_and_is_gone_afterwards():
    imported = gain.value
    with applied(mutant(1, "twice", "-", (VALUE, "return mean if kind", "return 2 * mean if kind"))):
        assert imported([-1.0], "log_prob") == -2.0
    assert imported([-1.0], "log_prob") == -1.0


def test_methods_class_methods_properties_and_decorated_functions_can_be_edited():
    here = f"{__name__}:"
    edits = [(here + "Box.plain", "1", "2"), (here + "Box.of", "1", "2"), (here + "Box.value", "1", "2"),
             (here + "Box.inherited", "super()", "2 * super()"), (here + "opened", "1", "2")]
    with applied(mutant(1, "all kinds", "-", *edits)), opened() as value:
        assert (Box().plain(), Box.of(), Box().value, Box().inherited(), value) == (2, 2, 2, 2, 2)
    assert (Box().plain(), Box.of(), Box().value, Box().inherited()) == (1, 1, 1, 1)


class Base:
    def inherited(self):
        return 1


class Box(Base):
    def plain(self):
        return 1

    @classmethod
    def of(cls):
        return 1

    @property
    def value(self):
        return 1

    def inherited(self):
        return super().inherited()


@contextlib.contextmanager
def opened():
    yield 1


@pytest.mark.seconds(900)
def test_every_mutant_is_killed_by_the_test_named_for_it():
    command = [sys.executable, "-m", "tests.mutants.run", "--skip-baseline"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
