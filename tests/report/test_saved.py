"""Saved rollouts: everything comes back, and a file whose arithmetic is not that of its log-probs
is refused."""

import json

import pytest

from minvenus.agent.record import rollout_to_json
from minvenus.config import ConfigError
from minvenus.igpo.recipes import Recipe
from minvenus.report.saved import load_batch, path_of, save_batch
from tests.agent.scripted import answer, run, search, visit
from tests.report.examples import saved_batch

RECIPE = Recipe.paper(lead_in="Answer.")
ROLLOUTS = [run([search(), visit(), answer(words)]) for words in ("cat", "\u2028dog")] * 2
LOGPROBS = [
    [[-2.0, -1.5], None, last]
    for last in ([-0.1, -1 / 3], [-2.5, -2.0], [-1.1, -1 / 3], [-2.5, -2.0])
]
BATCH = saved_batch(ROLLOUTS, [0, 0, 1, 1], [1.0, 0.0, 1.0, 0.0], RECIPE, LOGPROBS, step=20)


@pytest.fixture
def lines(tmp_path):
    save_batch(tmp_path, BATCH)
    return [json.loads(line) for line in path_of(tmp_path, 20).read_text().splitlines()]


def test_what_was_saved_comes_back_whole(lines, tmp_path):
    assert load_batch(path_of(tmp_path, 20)) == BATCH
    assert [path.name for path in (tmp_path / "rollouts").iterdir()] == ["step-00000020.jsonl"]
    keys = "format step group gain_policy recipe rollout truth_logprobs outcome arithmetic"
    assert list(lines[0]) == keys.split()
    assert lines[0]["rollout"] == rollout_to_json(BATCH.samples[0].rollout)


def set_at(number, *keys):
    def change(lines):
        place = lines[number]
        for key in keys[:-2]:
            place = place[key]
        place[keys[-2]] = keys[-1]

    return change


def nudged(lines):
    lines[2]["arithmetic"]["terms"][0] += 1e-7


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[1]["arithmetic"].pop("terms"), "line 2: stored and computed"),
        (nudged, "line 3: stored and computed arithmetic differ"),
        (set_at(1, "outcome", 1.0), "line 1: stored and computed"),  # the group's mean is in line 1
        (set_at(1, "truth_logprobs", 0, []), "rollout 1, context before turn 0: no token"),
        (set_at(1, "recipe", "gamma", 0.5), "line 2: stored and computed recipe differ"),
        (set_at(3, "step", 21), "line 4: stored and computed step differ"),
        (set_at(0, "recipe", "gama", 0.5), "no batch of rollouts .* 'gama'"),  # of another version
        (lambda lines: lines.pop(), "line 1: stored and computed"),  # IG-Scale: the whole batch
        (lambda lines: lines.clear(), "no batch of rollouts"),
    ],
)
def test_a_file_that_was_changed_is_refused_with_the_place(change, words, lines, tmp_path):
    change(lines)
    path = tmp_path / "changed.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ConfigError, match=words):
        load_batch(path)


def test_a_torn_file_is_refused(lines, tmp_path):
    torn = tmp_path / "torn.jsonl"
    torn.write_text(path_of(tmp_path, 20).read_text()[:-9])
    with pytest.raises(ConfigError, match=r"torn\.jsonl, line 4: not JSON"):
        load_batch(torn)
