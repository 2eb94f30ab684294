"""The command that shows expected updates beside the true gradient. What it computes: tests/igpo/test_gradient.py."""

import pytest
import torch

from minvenus.experiments import theory
from minvenus.experiments.__main__ import main
from minvenus.experiments.theory import World
from tests.igpo.test_gradient import FRONT


def test_pushes_are_per_time_that_a_hop_is_reached_and_in_lengths_of_the_gradient():
    """Two hops, two visits, right 1/4 and wrong 1/2: hop 1 is reached once, and after a wrong visit again, 1.5 times;
    hop 2 after a right one. The gradient has the length 5."""
    world = World.of((0.8, 0.8), (0.25, 0.5, 0.25), visits=2)
    gradient = torch.tensor([[0.0, 0.0, 3.0], [0.0, 0.0, -4.0]], dtype=torch.float64)
    assert theory.push_to_go_on(world, gradient) == pytest.approx([-3 / 1.5 / 5, 4 / 0.25 / 5])


def test_the_command_shows_pushes_per_hop_and_the_picture_has_a_line_for_each(capsys):
    main(["theory", "--group", "2"])
    parts = capsys.readouterr().out.split("\n\n")
    assert [part.split()[1] for part in parts[:3]] == list(
        theory.PROFILES
    ) and "groups of 2" in parts[0]
    for part in parts[:3]:
        assert part.count("true gradient of") == 2 and all(arm in part for arm in theory.ARMS)
    assert all(sum(gains) / 3 == pytest.approx(0.8) for gains in theory.PROFILES.values())
    assert theory.PROFILES["front"] == FRONT, "the gains of the table in docs/equations.md"
    assert all(
        name in theory.picture("front", 2) for name in ("true gradient of the gain", *theory.ARMS)
    )
