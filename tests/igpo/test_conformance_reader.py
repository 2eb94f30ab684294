"""The page on the conformance vectors is enough to reproduce them: a reader of it alone did."""

import importlib.util
import json
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CASES = json.loads((HERE.parents[1] / "docs" / "conformance" / "igpo.json").read_text())
CREDIT = ("gains", "turn_rewards", "penalties", "outcome", "group_stats", "turn_z", "outcome_z",
          "outcome_size", "turn_reward_size", "scale", "terms", "advantages")
LOSS = ("ratios", "losses", "k3", "weights", "policy_loss", "kl", "loss")

spec = importlib.util.spec_from_file_location("conformance_reader", HERE / "conformance_reader.py")
reader = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reader)


def close(ours, expected):
    """The comparison of the page, and an object must have just the expected names."""
    if isinstance(expected, dict):
        return ours.keys() == expected.keys() and all(close(ours[k], expected[k]) for k in expected)
    if isinstance(expected, list):
        return len(ours) == len(expected) and all(map(close, ours, expected))
    if isinstance(expected, bool) or ours is None or expected is None:
        return ours is expected
    relative = 1e-6 if abs(expected) > 1000 else 1e-9
    return abs(ours - expected) <= 1e-9 + relative * abs(expected)


@pytest.mark.parametrize("case", CASES["credit"], ids=lambda case: case["name"])
def test_credit(case):
    results = reader.credit(case["rollouts"], case["recipe"])
    assert len(results) == len(case["credit"])
    for i, (result, expected) in enumerate(zip(results, case["credit"], strict=True)):
        for name in CREDIT:
            assert close(result[name], expected[name]), (case["reason"], i, name)


@pytest.mark.parametrize("case", CASES["loss"], ids=lambda case: case["name"])
def test_loss(case):
    result = reader.loss(case["tokens"], case["settings"])
    for name in LOSS:
        assert close(result[name], case[name]), (case["reason"], name)
