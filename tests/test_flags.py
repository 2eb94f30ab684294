"""Command lines that come from a dataclass: what is accepted, what is refused, and with which
words."""

import json
from dataclasses import dataclass, fields
from typing import Literal

import pytest

from minvenus.config import check
from minvenus.flags import parse_flags, save_config
from minvenus.igpo.recipes import Recipe
from minvenus.setting import setting
from minvenus.settings import AgentConfig, EvalConfig, InferConfig
from minvenus.train.settings import IGPOConfig, SFTConfig


@dataclass(frozen=True)
class Example:
    steps: int = setting(3, "how many steps", heading="run", least=1)
    learning_rate: float = setting(0.5, "at 100 % of the schedule")
    shuffle: bool = setting(True, "whether the order is random", heading="data")
    mode: Literal["fast", "exact"] = setting("fast", "how to do it")
    folder: str | None = setting(None, "where to write; none = nowhere")
    name: str = setting("run", "of the run")
    files: tuple[str, str] | None = setting(None, "two of them")
    preset: Literal["large", "small"] = setting("large", "a named set of values")
    level: Literal[1, 2] | None = setting(None, "of detail")
    recipe: Recipe = setting(Recipe(), "the rewards", heading="rewards")

    def __post_init__(self):
        check(self)


def test_every_kind_of_field_has_its_flag_and_comes_back_from_the_saved_file(tmp_path):
    argv = "--steps 7 --learning-rate 1e-3 --no-shuffle --mode exact --folder x --level 2"
    config = parse_flags(Example, [*argv.split(), "--name=a b", "--files", "a", "b"])
    assert config == Example(7, 1e-3, False, "exact", "x", "a b", ("a", "b"), level=2)
    assert parse_flags(Example, "--shuffle --folder None --level none".split()) == Example()
    assert parse_flags(Example, []) == Example()
    for example in (config, Example()):
        path = save_config(example, tmp_path)
        assert [*tmp_path.iterdir()] == [path] == [tmp_path / "run.json"]
        assert parse_flags(Example, ["--config", str(path)]) == example


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--step=" + "9" * 30], ["unknown flag --step=9", "mean --steps?", "--no-shuffle"]),
        (["stray"], ["unknown flag stray. Valid flags: -"]),
        (["--steps", "three"], ["--steps", "three"]),
        (["--steps", "0"], ["steps must be a whole number of at least 1, got 0"]),
        (["--learning-rate", "nan"], ["learning_rate must be a number, got nan"]),
        (["--mode", "quick"], ["fast", "exact", "quick"]),
        (["--files", "a"], ["--files", "expected 2 arguments"]),
        (["--config", "nowhere.json"], ["nowhere.json does not exist"]),
        ({"stepz": 3}, ["unknown keys stepz", "learning_rate"]),  # the content of a --config FILE
        ({"steps": "3"}, ["of at least 1, got '3'"]),
        ({"files": ["a", 2]}, ["files must be"]),
        ({"recipe": {"gama": 1.0}}, ["unknown keys gama"]),
        ({"recipe": "paper"}, ["recipe must be an object"]),
        ("a text", ["JSON object"]),
    ],
)
def test_what_is_wrong_ends_with_code_2_and_names_what_is_valid(wrong, words, tmp_path, capsys):
    if not isinstance(wrong, list):
        (tmp_path / "run.json").write_text(json.dumps(wrong))
        wrong = ["--config", str(tmp_path / "run.json")]
    with pytest.raises(SystemExit) as caught:
        parse_flags(Example, wrong)
    message = capsys.readouterr().err
    assert caught.value.code == 2 and all(word in message for word in words), message


@pytest.mark.parametrize("cls", [Example, InferConfig, EvalConfig, SFTConfig, IGPOConfig])
def test_the_help_shows_every_flag_with_its_text_and_default_under_its_heading(cls, capsys):
    with pytest.raises(SystemExit) as caught:
        parse_flags(cls, ["--help"], "What it does.", program="python -m it")
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("usage: python -m it [-h]") and "] What it does. " in text
    assert caught.value.code == 0 and text.count("(default: ") >= len(fields(cls)) - 2
    if cls is Example:
        shown = "at 100 % of the schedule (default: 0.5) data: --shuffle, --no-shuffle whether"
        assert shown in text


def test_a_saved_config_overrides_a_preset_and_that_the_defaults_and_a_misspelt_one_is_refused(
    tmp_path, capsys
):
    presets = {"small": {"steps": 5, "mode": "exact"}, "large": {"steps": 50}}
    path = tmp_path / "run.json"

    def parse(*argv):
        return parse_flags(Example, [*argv], presets=presets)

    assert parse("--preset", "small", "--steps", "6") == Example(6, mode="exact", preset="small")
    path.write_text('{"steps": 9}')
    config = parse("--preset", "small", "--config", str(path))
    assert config == Example(9, mode="exact", preset="small")
    path.write_text('{"steps": 9, "preset": "small"}')
    assert parse("--config", str(path)) == config, "the file names the preset"
    for argv, words in (
        (["large", "--config", str(path)], "is of preset small: leave --preset large out"),
        (["smal"], "(choose from 'large', 'small')"),
    ):
        with pytest.raises(SystemExit):
            parse("--preset", *argv)
        assert words in capsys.readouterr().err


def test_a_nested_recipe_is_chosen_by_name_and_every_field_of_it_is_a_flag(tmp_path):
    def recipe(*argv):
        return parse_flags(Example, [*argv]).recipe

    released = Recipe.released
    assert recipe("--recipe", "released") == released()
    changed = recipe("--gamma", "1", "--recipe", "released", "--no-use-gain")
    assert changed == released(gamma=1.0, use_gain=False)
    saved = "--config", str(save_config(Example(recipe=released(gamma=0.5)), tmp_path))
    assert recipe(*saved) == released(gamma=0.5)
    assert recipe(*saved, "--browse", "off") == released(gamma=0.5, browse="off")
    assert recipe(*saved, "--recipe", "paper") == Recipe(), "a name replaces it whole"


def test_a_nested_class_without_names_gives_its_flags_and_is_saved_within_its_holder(tmp_path):
    argv = "--question q --max-turns 3 --temperature 0.5".split()
    config = parse_flags(InferConfig, argv)
    assert config == InferConfig(question="q", agent=AgentConfig(max_turns=3, temperature=0.5))
    path = str(save_config(config, tmp_path))
    changed = parse_flags(InferConfig, ["--config", path, "--max-turns", "4"])
    assert changed.agent == AgentConfig(max_turns=4, temperature=0.5)
    with pytest.raises(SystemExit):
        parse_flags(InferConfig, ["--agent", "x"])
