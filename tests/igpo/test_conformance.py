"""The conformance vectors are what the code computes, and cover what they promise."""

import json

import pytest

from docs.conformance import make
from minvenus.igpo.recipes import RECIPES
from tests import docs

VECTORS = json.loads(make.FILE.read_text(encoding="utf-8"))


def test_the_stored_vectors_are_those_of_the_code():
    assert make.text() == make.FILE.read_text(encoding="utf-8"), "python -m docs.conformance.make"


def test_there_are_at_least_120_cases_with_names_and_reasons_of_their_own():
    cases = VECTORS["credit"] + VECTORS["loss"]
    assert len(cases) == len({case["name"] for case in cases}) >= 120
    assert all(len(case["reason"].split()) >= 3 and "\n" not in case["reason"] for case in cases)
    page = (make.FILE.parent / "README.md").read_text(encoding="utf-8")
    assert f"has {len(cases)} small named cases" in page


@pytest.mark.parametrize(
    ("field", "values"),
    {
        "browse": {"replicate", "segment", "off"},
        "penalty_scope": {"turn", "segment"},
        "normalize": {"scaled", "separate", "joint", "none"},
        "spread": {"std", "rms", "one"},
        "discount_over": {"turns", "rewards"},
        "outcome_on": {"last", "every"},
        "gain": {"log_prob", "prob"},
        "center_gain": {True, False},
        "use_gain": {True, False},
        "format_penalty": {None, 0.0, 1.0, 2.0},
    }.items(),
)
def test_every_value_of_every_rule_is_in_a_case(field, values):
    assert {case["recipe"][field] for case in VECTORS["credit"]} == values


def test_floor_cap_absent_rewards_zeros_and_every_recipe_are_in_cases():
    scales = [case["credit"][0]["scale"] for case in VECTORS["credit"]]
    assert 10.0 in scales and min(scales) < 0.31
    rewards = []
    for case in VECTORS["credit"]:
        for rollout in case["credit"]:
            rewards += rollout["turn_rewards"]
    assert None in rewards and 0.0 in rewards
    for recipe in RECIPES.values():
        fields = make.arithmetic(recipe)
        assert sum(case["recipe"] == fields for case in VECTORS["credit"]) >= 17
    assert {case["settings"]["aggregate"] for case in VECTORS["loss"]} == {
        "seq-mean-token-mean", "token-mean", "seq-mean-token-sum"}
    assert {case["settings"]["dual_clip"] for case in VECTORS["loss"]} > {None}


def test_the_page_is_a_document_like_the_others():
    assert make.FILE.parent / "README.md" in docs.PAGES
