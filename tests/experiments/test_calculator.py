"""The reward calculator: what is given, what comes out, and what the examples claim."""

import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import ConfigError
from minvenus.experiments.__main__ import COMMANDS
from minvenus.experiments.__main__ import main as command
from minvenus.experiments.calculator import EXAMPLES, CreditConfig, main, read_samples
from minvenus.igpo.credit import assign_credit
from minvenus.igpo.recipes import RECIPES, Recipe


def advantages(example: str) -> dict[str, list[list[float]]]:
    samples = read_samples([("", rollout) for rollout in EXAMPLES[example][1]])
    return {name: assign_credit(samples, recipe).advantages for name, recipe in RECIPES.items()}


PRINTED = """
group 0, 2 rollouts:  turn reward mean 0.4000  turn reward spread 0.4000  outcome mean 0.5000  \
outcome std 0.5000
group 3, 1 rollouts:  turn reward mean 0.0000  turn reward spread 1.0000  outcome mean -1.0000  \
outcome std 1.0000
IG-Scale 0.6667:  mean |z| of outcomes 0.6667, of turn rewards 1.0000

rollout  turn    kind     gain   reward        z   scaled        A
1           1  search        -  +0.8000  +1.0000  +0.6667  +2.2025
            2   visit  +0.8000  +0.8000  +1.0000  +0.6667  +1.6167
            3  answer        -  +1.0000  +1.0000  +1.0000  +1.0000
2           1  search        -  +0.0000  -1.0000  -0.6667  -2.2025
            2   visit  +0.0000  +0.0000  -1.0000  -0.6667  -1.6167
            3  answer        -  +0.0000  -1.0000  -1.0000  -1.0000
3           1  answer        -  -1.0000  +0.0000  +0.0000  +0.0000
""".strip()


def test_the_table_word_for_word(tmp_path):
    """Gains .8 and 0: mean .4, std .4, z = +-1; outcomes 1 and 0 likewise; with the third rollout
    the outcomes' mean size is 2/3, and so is s. The search has the visit's reward: A = s + .95 *
    (s + .95). The third rollout is of another group; its only turn, a right answer, is malformed:
    its reward is -1, which has nothing to be compared with. Gains alone do not say what V was."""
    file = tmp_path / "rewards.json"
    file.write_text(
        '{"kinds": ["search", "visit", "answer"], "gains": [null, 0.8], "outcome": 1}\n'
        '{"kinds": ["search", "visit", "answer"], "gains": [null, 0], "outcome": 0}\n'
        '{"group": 3, "kinds": ["answer"], "gains": [], "outcome": 1, "malformed": [true]}'
    )
    assert main(CreditConfig(file=str(file))) == PRINTED
    first, second, third = json.loads(main(CreditConfig(file=str(file), json=True)))
    z = 0.4 / (math.sqrt(0.16 + 1e-8) + 1e-6)
    outcome_z = 0.5 / (math.sqrt(0.25 + 1e-8) + 1e-6)
    advantage = 1.95 * z * outcome_z / 1.5 / (z + 1e-6) + 0.9025 * outcome_z
    assert first["advantages"][0] == pytest.approx(advantage, abs=1e-11), "12 digits"
    assert (first["group"], first["beliefs"], third["group"]) == (0, [None] * 3, 3)
    assert first["gains"] == [None, 0.8, None] and second["turn_rewards"] == [0.0, 0.0]
    page = str(tmp_path / "x.html")
    main(CreditConfig(file=str(file), page=page, recipe=Recipe(spread="rms")))
    text = Path(page).read_text()
    assert "the root mean square instead" in text, "under the recipe given"
    assert "V after turn 2 = 0.8; V of the question = 0" in text
    assert "log P counts from 0 where only gains were given" in text


number = st.floats(-5, 5)
visits = st.lists(st.tuples(number, number), min_size=0, max_size=3)


@given(st.lists(visits, min_size=1, max_size=4), st.sampled_from(list(RECIPES.values())))
def test_gains_have_the_credit_of_log_probs_that_rise_by_them(rollouts, recipe):
    """A spread that is nothing but rounding is divided by 1e-4."""
    by_gains, by_logprobs = [], []
    for i, steps in enumerate(rollouts):
        gains = [gain for pair in steps for gain in pair]
        logprobs = list(itertools.accumulate(gains, initial=-3.0))
        kinds = ["search", "visit"] * len(steps) + ["answer"]
        shared = {"kinds": kinds, "outcome": float(i % 2), "group": i // 2}
        by_gains.append(("", shared | {"gains": gains}))
        by_logprobs.append(("", shared | {"logprobs": logprobs}))
    ours, theirs = (assign_credit(read_samples(r), recipe) for r in (by_gains, by_logprobs))
    for a, b in zip(ours.gains, theirs.gains, strict=True):
        assert a == pytest.approx(b, abs=1e-9)
    for a, b in zip(ours.advantages, theirs.advantages, strict=True):
        assert a == pytest.approx(b, rel=1e-6, abs=1e-6)


VISIT = '{"kinds": ["visit", "answer"], "outcome": 0.25, '


def test_log_probs_are_used_as_they_are(tmp_path):
    file = tmp_path / "rewards.jsonl"
    file.write_text(VISIT + '"logprobs": [[-2.0, -1.0], -0.5], "group": 7}\n')
    [only] = json.loads(main(CreditConfig(file=str(file), json=True)))
    shown = main(CreditConfig(file=str(file))).splitlines()
    assert shown[-3].split()[3:7] == ["V", "before", "V", "after"]
    assert shown[-2].split()[3:5] == ["-1.5000", "-0.5000"]
    assert shown[-1].split()[2:4] == ["-0.5000", "-"], "nothing follows the answer"
    assert only["beliefs"] == [-1.5, -0.5] and only["gains"] == [1.0, None] and only["group"] == 7
    assert only["outcome"] == 0.25
    both = tmp_path / "both.jsonl"
    both.write_text(file.read_text() + VISIT + '"gains": [0.5]}')
    rollouts = json.loads(main(CreditConfig(file=str(both), json=True)))
    assert [rollout["beliefs"] for rollout in rollouts] == [[-1.5, -0.5], [None, None]]
    assert main(CreditConfig(file=str(both))).splitlines()[-2].split()[3:5] == ["-", "-"]
    [prob] = json.loads(main(CreditConfig(file=str(file), json=True, recipe=Recipe(gain="prob"))))
    assert prob["gains"][0] == pytest.approx(0.6065307 - 0.2231302, abs=1e-6)


WRONG = {
    '{"kinds": ["answer"], "gains": [], "outcome": 0, "gain": 1}': "no field but kinds, outcome, ",
    '{"kinds": ["visits", "answer"], "gains": [1], "outcome": 0}': "kinds must be .* search, visit",
    '{"kinds": [], "gains": [], "outcome": 0}': "give kinds",
    '{"kinds": ["visit"], "gains": [], "outcome": 0}': "the last turn cannot be a visit",
    VISIT + '"gains": [1, 2]}': "gains must have 1 entries",
    VISIT + '"gains": [null]}': "gains must have a number for every visit",
    VISIT + '"group": 0}': "gains or logprobs, one of the two",
    VISIT + '"gains": [1], "logprobs": [0, 0]}': "gains or logprobs, one of the two",
    VISIT + '"logprobs": [0]}': "logprobs must have 2 entries",
    VISIT + '"gains": [1], "malformed": [true]}': "malformed must have 2 entries",
    '{"kinds": [': "not JSON: ",
}


@pytest.mark.parametrize("line", WRONG)
def test_an_error_names_the_line_and_the_field(tmp_path, line):
    file = tmp_path / "rewards.json"
    file.write_text('{"kinds": ["answer"], "gains": [], "outcome": 0}\n\n' + line)
    with pytest.raises(ConfigError, match=rf"line 3: .*{WRONG[line]}"):
        main(CreditConfig(file=str(file)))


@pytest.mark.parametrize(
    ("text", "gain", "words"),
    [
        ("", "log_prob", "no rollout"),
        (VISIT + '"logprobs": [-2, -1]}\n' + VISIT + '"gains": [1]}', "prob", "needs logprobs"),
        (VISIT + '"logprobs": [null, -1]}', "log_prob", "json: rollout 0, context before turn 0"),
    ],
)
def test_what_cannot_be_computed_is_refused(tmp_path, text, gain, words):
    file = tmp_path / "rewards.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        main(CreditConfig(file=str(file), recipe=Recipe(gain=gain)))


@pytest.mark.parametrize(
    "given", [{}, {"file": "a", "example": "all-wrong"}, {"example": "unheard-of"}]
)
def test_a_file_or_an_example_must_be_named_and_not_both(given):
    with pytest.raises(ConfigError, match="example"):
        CreditConfig(**given)


def test_examples_show_what_they_say():
    wrong = advantages("all-wrong")
    assert not any(map(any, wrong["grpo"])) and wrong["paper"][0][1] > 0 > wrong["paper"][1][1]
    equal = advantages("equal-gains")
    assert all(a < 0 for a in equal["paper"][1]) and equal["uncentred"][1][1] > 0
    front = advantages("front-loaded")
    assert front["paper"][0][3] < 0 < front["uncentred"][0][3]
    early = advantages("stops-early")
    assert early["paper"][0][0] > early["paper"][1][0]
    assert early["uncentred"][0][0] < early["uncentred"][1][0]
    broken = advantages("malformed")
    assert broken["paper"][0][1] < broken["paper"][0][0] < 0
    assert broken["released"][0][0] == broken["released"][0][1]
    assert set(broken["grpo"][0]) == {broken["grpo"][0][-1]}
    at_once, *_ = json.loads(main(CreditConfig(example="no-visit", json=True)))
    assert at_once["group_stats"]["turn_reward_mean"] == pytest.approx(0.4)
    assert at_once["turn_rewards"] == []


def test_an_example_is_explained_and_has_a_page(tmp_path, capsys):
    command(["credit", "--example", "malformed"])
    shown = capsys.readouterr().out
    assert EXAMPLES["malformed"][0] in shown and all(name in shown for name in RECIPES)
    command(["credit", "--example", "malformed", "--page", str(tmp_path / "x.html")])
    written = (tmp_path / "x.html").read_text()
    assert "<h1>Rollouts of malformed</h1>" in written
    assert "<dt>recipe</dt><dd>paper</dd>" in written


def test_help_lists_the_commands_and_has_the_form_of_the_file(capsys):
    for flags, code, told in ([], 2, "err"), (["nothing"], 2, "err"), (["--help"], 0, "out"):
        with pytest.raises(SystemExit) as ended:
            command(flags)
        shown = getattr(capsys.readouterr(), told)
        assert ended.value.code == code and all(f"\n  {name} " in shown for name in COMMANDS)
    with pytest.raises(SystemExit):
        command(["credit", "--help"])
    form = '    {"group": 0, "kinds": ["search", "visit", "answer"], "gains": [null, 0.5]'
    shown = capsys.readouterr().out
    assert form in shown and "1e-10" in shown, "what the released code does with a gain of 0"


def test_the_file_may_be_the_first_word(tmp_path, capsys):
    file = tmp_path / "rewards.json"
    file.write_text("\n".join(map(json.dumps, EXAMPLES["no-visit"][1])))
    command(["credit", str(file), "--recipe", "released"])
    assert "+2.2863" in capsys.readouterr().out
