"""Command lines that come from a dataclass: what is accepted, what is refused, and with which words."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import Count, Recipe, check
from minvenus.flags import parse_flags, save_config
from minvenus.settings import AgentConfig, EvalConfig, IGPOConfig, InferConfig, SFTConfig


@dataclass(frozen=True)
class Example:
    steps: Count = 3                              # how many steps
    learning_rate: float = 0.5                    # at 100 % of the schedule
    use_gain: bool = True                         # whether gains count
    mode: Literal["fast", "exact"] = "fast"       # how to do it
    folder: str | None = None                     # where to write; none = nowhere
    name: str = "run"                             # of the run

    def __post_init__(self):
        check(self)


def refused(argv, capsys) -> str:
    with pytest.raises(SystemExit) as caught:
        parse_flags(Example, argv)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_every_kind_of_field_has_its_flag():
    argv = ["--steps", "7", "--learning-rate", "1e-3", "--no-use-gain", "--mode", "exact", "--folder", "x"]
    assert parse_flags(Example, [*argv, "--name=a b"]) == Example(7, 1e-3, False, "exact", "x", "a b")
    assert parse_flags(Example, ["--use-gain", "--folder", "none"]) == parse_flags(Example, []) == Example()


@pytest.mark.parametrize(("argv", "words"), [
    (["--step", "3"], ["unknown flag --step", "did you mean --steps?", "--learning-rate", "--no-use-gain"]),
    (["--stepz=3"], ["unknown flag --stepz", "--steps"]),
    (["stray"], ["unknown flag stray"]),
    (["--steps", "three"], ["--steps", "three"]),
    (["--steps", "0"], ["steps must be a whole number of at least 1, got 0"]),
    (["--learning-rate", "nan"], ["learning_rate must be a finite number, got nan"]),
    (["--mode", "quick"], ["fast", "exact", "quick"]),
    (["--name=--"], ["name must be text, got"]),
    (["--use-gain", "maybe"], ["unknown flag maybe"]),
    (["--config", "nowhere.json"], ["nowhere.json does not exist"]),
])
def test_what_is_wrong_ends_with_code_2_and_names_what_is_valid(argv, words, capsys):
    message = refused(argv, capsys)
    assert all(word in message for word in words), message


@pytest.mark.parametrize("cls", [Example, InferConfig, EvalConfig, SFTConfig, IGPOConfig])
def test_the_help_of_every_flag_is_the_comment_behind_its_field(cls, capsys):
    with pytest.raises(SystemExit) as caught:
        parse_flags(cls, ["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0 and text.count("(default: ") >= len(fields(cls)) - 2
    assert cls is not Example or "at 100 % of the schedule (default: 0.5) --use-gain, --no-use-gain whether" in text


def test_flags_override_a_saved_config_and_the_saved_config_overrides_defaults(tmp_path):
    path = str(save_config(Example(steps=9, mode="exact"), tmp_path / "run"))
    assert parse_flags(Example, ["--config", path]) == Example(steps=9, mode="exact")
    assert parse_flags(Example, ["--config", path, "--steps", "4"]) == Example(steps=4, mode="exact")
    assert parse_flags(Example, ["--steps", "4", "--config", path]) == Example(steps=4, mode="exact")


def test_a_preset_overrides_defaults_and_a_misspelt_one_names_the_valid_ones(capsys):
    presets = {"small": {"steps": 5, "mode": "exact"}, "large": {"steps": 50}}
    given = parse_flags(Example, ["--preset", "small", "--steps", "6"], presets=presets)
    assert given == Example(steps=6, mode="exact")
    with pytest.raises(SystemExit):
        parse_flags(Example, ["--preset", "smal"], presets=presets)
    message = capsys.readouterr().err
    assert "small" in message and "large" in message


@dataclass(frozen=True)
class Nested:
    steps: int = 3                # how many
    recipe: Recipe = Recipe()     # the rewards


def test_a_nested_recipe_is_chosen_by_name_and_every_field_of_it_is_a_flag(tmp_path):
    assert parse_flags(Nested, []) == Nested()
    assert parse_flags(Nested, ["--recipe", "released"]).recipe == Recipe.released()
    assert parse_flags(Nested, ["--gamma", "1", "--recipe", "released", "--no-use-gain"]).recipe == Recipe.released(
        gamma=1.0, use_gain=False)
    path = str(save_config(Nested(recipe=Recipe.released(gamma=0.5)), tmp_path))
    assert parse_flags(Nested, ["--config", path]).recipe == Recipe.released(gamma=0.5)
    assert parse_flags(Nested, ["--config", path, "--browse", "off"]).recipe == Recipe.released(gamma=0.5, browse="off")


def test_a_nested_class_without_names_gives_its_flags_and_is_saved_within_its_holder(tmp_path):
    config = parse_flags(InferConfig, ["--question", "q", "--max-turns", "3", "--temperature", "0.5"])
    assert config == InferConfig(question="q", agent=AgentConfig(max_turns=3, temperature=0.5))
    changed = parse_flags(InferConfig, ["--config", str(save_config(config, tmp_path)), "--max-turns", "4"])
    assert changed.agent == AgentConfig(max_turns=4, temperature=0.5)
    for refused_flags in (["--agent", "x"], ["--max-turns", "0"]):
        with pytest.raises(SystemExit):
            parse_flags(InferConfig, refused_flags)


@pytest.mark.parametrize("recipe", [{"gama": 1.0}, {"gamma": "1"}, {"browse": "copy"}, "paper", {"gamma": 2.0}])
def test_a_saved_nested_config_is_checked_too(recipe, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"recipe": recipe}))
    with pytest.raises(SystemExit) as caught:
        parse_flags(Nested, ["--config", str(tmp_path / "run.json")])
    assert caught.value.code == 2


@pytest.mark.parametrize(("saved", "words"), [
    ({"stepz": 3}, ["unknown keys stepz", "learning_rate"]),
    ({"steps": "3"}, ["steps must be a whole number of at least 1, got '3'"]),
    ({"steps": True}, ["steps must be a whole number of at least 1, got True"]),
    ({"mode": "quick"}, ["one of fast, exact"]),
    ({"steps": 0}, ["at least 1"]),
    ({"name": None}, ["name must be text"]),
    ([], ["JSON object"]),
])
def test_a_saved_config_is_checked_like_flags(saved, words, tmp_path, capsys):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(saved))
    message = refused(["--config", str(path)], capsys)
    assert all(word in message for word in words), message


@dataclass(frozen=True)
class Pair:
    files: tuple[str, str] | None = None      # two of them

    def __post_init__(self):
        check(self)


def test_a_pair_takes_two_values_and_is_saved_as_a_list_of_two(tmp_path):
    pair = parse_flags(Pair, ["--files", "a", "b"])
    assert pair == Pair(("a", "b")) and parse_flags(Pair, []).files is None
    assert parse_flags(Pair, ["--config", str(save_config(pair, tmp_path))]) == pair
    (tmp_path / "run.json").write_text('{"files": ["a"]}')
    for argv in (["--files", "a"], ["--files", "a", "b", "c"], ["--config", str(tmp_path / "run.json")]):
        with pytest.raises(SystemExit):
            parse_flags(Pair, argv)


words = st.text(min_size=1).filter(lambda text: text != "--")
finite = st.floats(allow_nan=False, allow_infinity=False)
examples = st.builds(Example, steps=st.integers(1, 10**9), learning_rate=finite, use_gain=st.booleans(),
                     mode=st.sampled_from(["fast", "exact"]), name=words, folder=st.none() | words)


@given(examples)
def test_a_saved_config_loads_as_itself(tmp_path_factory, example):
    folder = tmp_path_factory.mktemp("run")
    assert parse_flags(Example, ["--config", str(save_config(example, folder))]) == example
    assert [p.name for p in folder.iterdir()] == ["run.json"]


@given(examples)
def test_flags_written_out_give_the_config_back(example):
    argv = []
    for name, value in asdict(example).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            argv.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None and not (name == "folder" and value.lower() == "none"):
            argv.append(f"--{flag}={value}")
    expected = asdict(example) | ({"folder": None} if (example.folder or "").lower() == "none" else {})
    assert asdict(parse_flags(Example, argv)) == expected
