"""From settings to a loop: which model is loaded, what it is told, how it samples, within which
limits."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from minvenus.agent.load import format_of, load_loop, pages_of_memory, resolved
from minvenus.agent.prompt import DR_VENUS, MINVENUS, TOYWEB, read_format
from minvenus.config import ConfigError, ModelConfig
from minvenus.files import write_json
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.settings import AgentConfig
from minvenus.text.tokenizer import TINY, Tokenizer
from tests.tools.servers import serve


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def save_tiny(folder: Path, seed: int = 0) -> None:
    weights.save(
        Qwen3(ModelConfig.preset("tiny"), seed=seed), folder, Tokenizer.tiny().files | TOYWEB.files
    )


def load(sequences=1, pages=None, **settings):
    """The policy of these settings, its loop, and the description."""
    loop, description = load_loop(AgentConfig(**settings), sequences, pages)
    return loop.writer, loop, description


def test_the_newest_trained_model_is_taken_when_there_is_one_and_named_before_it_is_loaded(capsys):
    assert resolved(AgentConfig()).model == "tiny"
    for seed, run in ((1, "demo/old"), (2, "new")):
        checkpoint = Path("runs", run, "checkpoints", "step-00000007")
        save_tiny(checkpoint / "model", seed)
        (checkpoint / "state.json").write_text("{}")
        Path("runs", run, "latest").write_text(checkpoint.name + "\n")
        os.utime(Path("runs", run, "latest"), (seed, seed))
    newest, _, description = load()
    folder = "runs/new/checkpoints/step-00000007/model"
    assert description.startswith(f"weights from {folder}\n492,288 parameters on cpu\n")
    score = newest.engine.score(list(range(9)), [[5, 6, 7]])
    assert resolved(AgentConfig(model=folder)).model == folder
    assert capsys.readouterr().err == "", "there was none, or it was named"
    assert resolved(AgentConfig()).model == folder
    assert capsys.readouterr().err == f"the newest model under runs/ is taken: {folder}\n"
    os.utime("runs/demo/old/latest", (3, 3))
    assert load()[2].startswith("weights from runs/demo/old/"), (
        "the time counts, not the order of the folders"
    )
    assert load()[0].engine.score(list(range(9)), [[5, 6, 7]]) != score


def test_a_model_is_told_what_its_folder_says_at_an_endpoint_and_with_any_tools_alike():
    """It was guessed from the size of the vocabulary, and at an endpoint always wrong."""
    save_tiny(Path("toy"))
    for settings in ({}, {"tools": "folder:x"}, {"api_base": "http://x", "api_model": "m"}):
        config = AgentConfig(model="toy", **settings)
        assert format_of(config) == TOYWEB
        assert (resolved(config).temperature, resolved(config).max_context) == (0.0, 1024)
    with serve(lambda handler: handler.reply({})) as server:
        loop, _ = load_loop(AgentConfig(model="toy", api_base=f"{server.url}/v1", api_model="m"))
    assert loop.format == TOYWEB
    Path("toy/agent.json").unlink()
    assert format_of(AgentConfig(model="toy")) == MINVENUS, "the same weights and vocabulary"
    assert format_of(AgentConfig()) == TOYWEB, "random weights are for the toy web"
    assert format_of(AgentConfig(model="toy", like="toyweb")) == TOYWEB


def test_what_was_not_given_follows_from_the_format_and_what_was_given_stays():
    released = resolved(AgentConfig(model="folder", like="dr-venus"))
    for name in ("max_new_tokens", "max_context", "temperature", "top_p", "top_k", "retries"):
        assert getattr(released, name) == getattr(DR_VENUS, name)
    assert released.max_turns is None, "the toy web knows how many turns a question needs"
    config = AgentConfig(model="folder", temperature=0.0, max_context=7, top_k=0, tools="live")
    given = resolved(config)
    assert (given.temperature, given.max_context, given.top_k, given.retries) == (0.0, 7, 0, 0)
    assert given.max_turns == MINVENUS.max_turns


NUMBERS = {  # of every format: its limits, then its sampling and retries
    MINVENUS: [200, 40_960, 8192, 8192, None, None, None, 1.0, 0.95, 20, 1.1, 4],
    TOYWEB: [200, 1024, 64, 8192, None, None, None, 0.0, 1.0, 0, 0.0, 0],
    DR_VENUS: [201, 261_000, 15_000, 240_000, 240_000, 4096, 9000.0, 1.0, 0.95, 20, 1.1, 4],
}


def test_a_format_survives_its_file_and_a_damaged_file_is_refused_by_name(tmp_path):
    for saved, numbers in NUMBERS.items():
        assert list(vars(saved).values())[3:] == numbers
        write_json(tmp_path / "agent.json", saved.files["agent.json"])
        assert read_format(tmp_path) == saved
    for damaged in (
        '{"max_turns": 0}',
        '{"prompt": "x"}',
        '{"notices": {"malformed": 3}}',
        "[]",
        "{",
    ):
        (tmp_path / "agent.json").write_text(damaged)
        with pytest.raises(ConfigError, match=r"agent\.json"):
            read_format(tmp_path)


def test_the_prompt_of_the_released_models_must_come_from_a_file_a_trajectory_or_the_model_s_folder(
    tmp_path,
):
    config = AgentConfig(model=str(tmp_path), like="dr-venus")
    with pytest.raises(ConfigError, match="--system-prompt FILE"):
        _ = format_of(config).prompt
    Path("words.json").write_text(
        json.dumps({"messages": [{"role": "system", "content": "Words.\n"}]})
    )
    assert format_of(replace(config, system_prompt="words.json")) == replace(
        DR_VENUS, system="Words.\n"
    )
    write_json(tmp_path / "agent.json", replace(MINVENUS, system="Its own.").files["agent.json"])
    assert format_of(config) == replace(DR_VENUS, system="Its own.")
    assert format_of(replace(config, like="toyweb")) == TOYWEB, "which has a prompt"
    Path("text").write_text("Search!", encoding="utf-8-sig")  # as Windows writes it
    assert format_of(replace(config, system_prompt="text")).prompt == "Search!"


def test_the_policy_samples_as_its_settings_say_locally_and_at_an_endpoint():
    settings = {"temperature": 0.6, "top_k": 7, "top_p": 0.9, "presence_penalty": 1.5, "seed": 3}
    policy, loop, _ = load(**settings)
    assert set(policy.sampling.stop_ids) == {*loop.tokenizer.stop_ids, loop.tokenizer.tool_response}
    assert (
        policy.engine.sampler.width == loop.tokenizer.size
        and load(top_k=0)[0].sampling.top_k is None
    )
    at = {"model": str(TINY), "api_base": "http://127.0.0.1:9/v1", "api_model": "m"}
    remote = load(**at, **settings)[0]
    for found in (policy, remote):
        assert {"seed": 3} | {
            name: getattr(found.sampling, name) for name in settings if name != "seed"
        } == settings
    assert policy.engine.seed == remote.seed == 3
    scores = [load(seed=seed)[0].engine.score([5], [[6]]) for seed in (0, 3)]
    assert scores[0] != scores[1] == policy.engine.score([5], [[6]])
    assert remote.send_ids and not load(**at, prompt_ids=False)[0].send_ids


def test_the_cache_holds_the_context_of_so_many_sequences_within_its_bytes_and_of_one_in_any_case(
    monkeypatch,
):
    page = 2 * 2 * 2 * 32 * 4 * 64  # keys and values, layers, heads, channels, bytes, tokens
    for room, counts in ((48, [16, 48]), (47, [16, 47]), (5, [16, 16])):
        monkeypatch.setattr("minvenus.agent.load.CACHE_BYTES", room * page)
        assert [load(n)[0].engine.pool.count for n in (1, 3)] == counts
    assert load(3, pages=20)[0].max_context == 20 * 64
    assert load(max_context=100_000)[0].engine.pool.count == 4096 // 64, "what the model can read"
    with pytest.raises(
        ConfigError, match="15 pages hold no rollout of 1,024 tokens: give at least 16"
    ):
        load(3, pages=15)


def test_on_a_gpu_the_cache_may_take_most_of_what_is_free(monkeypatch):
    free = 100 * 2 * 2 * 2 * 32 * 2 * 64  # pages: as above, in 2 bytes
    weight = SimpleNamespace(is_cuda=True, itemsize=2)
    model = SimpleNamespace(config=ModelConfig.preset("tiny"), head_weight=weight)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 2 * free))
    assert pages_of_memory(model) == 80


@pytest.mark.parametrize(
    ("endpoint", "context"),
    [({}, 4096), ({"api_base": "http://127.0.0.1:9/v1", "api_model": "m"}, 261_000)],
)
def test_all_limits_reach_the_loop_within_the_context_of_the_policy(endpoint, context, tmp_path):
    (tmp_path / "prompt.txt").write_text("Words of the release.\nMore.")
    config = AgentConfig(
        model=str(weights.TINY_BASE),
        like="dr-venus",
        tools="folder:.",
        system_prompt="prompt.txt",
        max_new_tokens=100,
        **endpoint,
    )
    loop, _ = load_loop(config, sequences=3)
    assert loop.format == replace(
        DR_VENUS, system=loop.system, max_context=context, max_new_tokens=100
    )
    assert (loop.system, loop.max_malformed) == ("Words of the release.\nMore.", 5)
    assert (loop.tools.threads, loop.tools.seconds) == (None, 450.0), "a folder cannot hang"
    own = {
        "max_context": 900,
        "max_new_tokens": 7,
        "max_observation_tokens": 99,
        "time_limit": 5.0,
        "retries": 2,
    }
    loop, _ = load_loop(
        replace(config, tools="live", tool_seconds=4.0, max_malformed=6, **own), sequences=3
    )
    assert loop.format == replace(DR_VENUS, system=loop.system, **own)
    assert (loop.tools.threads, loop.tools.seconds, loop.max_malformed) == (3, 4.0, 6)
