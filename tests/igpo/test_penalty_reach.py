"""How far a format penalty reaches: its own turn, or also the searches before it (invariant 38)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import Recipe
from minvenus.igpo.advantage import turn_advantages
from minvenus.types import TurnRewards
from tests.igpo.strategies import MODES, advantages, assert_close, recipes
from tests.igpo.test_returns import close, rows, usual, with_turn_inserted


def test_a_search_before_a_malformed_turn_keeps_belonging_to_its_visit():
    """Search, malformed turn, visit (0.4), answer (1), raw rewards, gamma 1/2. Localised, the search shares the
    visit's return 0.4 + 0.5; leaking, it shares the malformed turn's -1 + 0.45."""
    rewards = [TurnRewards([None, -1.0, 0.4], 1.0, penalties=[False, True, False])]
    recipe = Recipe.released(normalize="none", gamma=0.5)
    assert_close(turn_advantages(rewards, [0], replace(recipe, penalty_scope="turn")), [[0.9, -0.55, 0.9, 1.0]], 1e-15)
    assert_close(turn_advantages(rewards, [0], recipe), [[-0.55, -0.55, 0.9, 1.0]], 1e-15)


@given(usual, recipes(discount_over="rewards", penalty_scope="turn"))
def test_localised_a_turn_without_reward_takes_the_next_return_that_is_no_penalty(batch, recipe):
    """A rewarded turn, penalised or not: its reward plus gamma times the next return. An unrewarded one: the return of
    the next visit or answer, past any malformed turn."""
    for r, (terms, a) in zip(batch.rewards, rows(batch, recipe), strict=True):
        flags = [*(r.penalties or [False] * len(r.turns)), False]
        rewarded = [t for t, v in enumerate(terms) if v is not None]
        for t in range(len(terms)):
            if terms[t] is None:
                assert a[t] == a[next(k for k in rewarded if k > t and not flags[k])]
            elif t < len(terms) - 1:
                assert close(a[t], terms[t] + recipe.gamma * a[next(k for k in rewarded if k > t)])


@given(usual, recipes(discount_over="rewards", penalty_scope="turn", normalize="none"), st.data())
def test_a_localised_malformed_turn_changes_only_its_own_reward_and_the_sums_before_it(batch, recipe, data):
    """Invariant 38, with raw rewards so that no statistics move: later turns and the unrewarded searches just before
    it keep their advantages; only returns that look across it change."""
    before = advantages(batch, recipe)
    longer, i, t = with_turn_inserted(batch, data, reward=-1.0)
    after = advantages(longer, recipe)
    assert after[i][t + 1:] == before[i][t:]
    u = t - 1
    while u >= 0 and batch.rewards[i].turns[u] is None:
        assert after[i][u] == before[i][u]
        u -= 1


@pytest.mark.parametrize("normalize", MODES)
def test_under_the_segment_scope_a_penalty_is_a_reward_like_any_other(normalize):
    flagged = [
        TurnRewards([None, -1.0, 0.4], 1.0, penalties=[False, True, False]),
        TurnRewards([0.1], 0.0, penalties=[False]),
    ]
    bare = [TurnRewards(r.turns, r.outcome) for r in flagged]
    recipe = Recipe.released(normalize=normalize)
    assert turn_advantages(flagged, [0, 0], recipe) == turn_advantages(bare, [0, 0], recipe)
