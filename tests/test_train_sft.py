"""train_sft.py as its users meet it: what it writes and says, how it stops and goes on, and how it
refuses."""

import json
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import train_sft
from minvenus.agent.prompt import DR_VENUS, TOYWEB, read_format
from minvenus.config import ConfigError, ModelConfig
from minvenus.files import latest_checkpoint, read_jsonl
from minvenus.flags import parse_flags
from minvenus.model import weights
from minvenus.model.lora import adapters
from minvenus.sft.dataset import encode
from minvenus.train.checkpoint import load_start
from minvenus.train.settings import SFTConfig
from tests.train.runs import (
    TINY,
    command,
    content,
    demonstrations,
    signalled,
    small_config,
    unexplained_metrics,
    write_inputs,
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory):
    """A run of three steps that was never stopped: its folder."""
    run = tmp_path_factory.mktemp("whole")
    train_sft.main(small_config(inputs, run))
    return run


def write_records(path: Path, records) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


# --------------------------------------------------------------------------------- a run as a whole


def test_the_model_s_folder_says_what_it_was_trained_to_read(inputs, whole, tmp_path):
    told = read_format(latest_checkpoint(whole) / "model")
    assert told == TOYWEB, "as its start, with the prompt of the trajectories"
    own = demonstrations(8)
    other = [
        {"messages": [{"role": "system", "content": "Tools!"}, *record["messages"][1:]]}
        for record in own
    ]
    for records, system in ((other, "Tools!"), (own[:4] + other[4:], None)):
        data = write_records(tmp_path / "data.jsonl", records)
        folder = train_sft.main(
            small_config(inputs, tmp_path / str(system), data=data, steps=1, like="dr-venus")
        )
        assert read_format(folder) == replace(DR_VENUS, system=system), (
            "two prompts: neither is the model's"
        )
    (Path(inputs["model"]) / "agent.json").rename(tmp_path / "agent.json")
    toy = SFTConfig(model=inputs["model"])
    assert train_sft.prompt_format(toy, {TOYWEB.system}) == TOYWEB, "of a base that says nothing"
    (tmp_path / "agent.json").rename(Path(inputs["model"]) / "agent.json")


def test_a_run_says_where_the_model_is_and_what_to_run_next_and_the_model_loads(
    inputs, tmp_path, capsys
):
    config = small_config(inputs, tmp_path / "run")
    assert command("train_sft.py", config) == 0
    out, err = capsys.readouterr()
    folder = tmp_path / "run" / "checkpoints" / "step-00000003" / "model"
    assert out.startswith(f"""data        8 trajectories, 952 tokens, 472 of them trained
            2 held out, 6 trained on
model       14,656 parameters on cpu
settings    model {inputs["model"]}, out {config.out}, steps 3, evaluate_every 2, save_every 1, \
device cpu, data {inputs["data"]}, max_tokens 400, validation 2, batch 3, learning_rate 0.01, \
warmup 0.4, pack_tokens 400; all of them in {config.out}/run.json
start       step 0
model       {folder}
""")
    assert f"next        python infer.py --model {folder} --tools live --question" in out
    assert "sft 1/3" in err and re.search("sft 3/3 .* left .* tokens/s .* loss", err)
    weights.load(folder)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in folder.iterdir()
    }
    assert parse_flags(SFTConfig, ["--config", str(tmp_path / "run" / "run.json")]) == config


def test_the_loss_falls_and_every_number_is_explained(whole):
    rows = read_jsonl(whole / "metrics.jsonl")
    assert rows[2]["loss"] < rows[0]["loss"] and rows[2]["validation_loss"] < rows[1]["loss"]
    assert not unexplained_metrics(whole), "docs/metrics.md explains every number"


def test_a_run_does_not_go_on_with_other_held_out_trajectories(inputs, tmp_path):
    *lines, one, other = Path(inputs["data"]).read_text().splitlines(keepends=True)
    data = tmp_path / "data.jsonl"
    config = small_config(inputs, tmp_path / "run", steps=1, validation=1, data=str(data))
    data.write_text("".join([*lines, other]))
    train_sft.main(config)
    data.write_text("".join([*lines, one]))
    with pytest.raises(ConfigError, match="was made with other data"):
        train_sft.main(config)


def test_over_long_trajectories_are_dropped_with_their_number(inputs, tmp_path, capsys):
    records = demonstrations(6, hops=(1, 2))
    data, short = write_records(tmp_path / "data.jsonl", records), len(encode(records[0], TINY))
    config = small_config(
        inputs, tmp_path / "run", data=data, max_tokens=short, validation=0, steps=1
    )
    assert command("train_sft.py", config) == 0
    assert (
        "3 trajectories" in (out := capsys.readouterr().out)
        and "3 dropped because they are too long" in out
    )


# ----------------------------------------------------------------------------- the default: the toy


def test_by_default_the_tiny_base_learns_from_the_toy_web(inputs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(weights, "TINY_BASE", Path(inputs["model"]))
    settings = SFTConfig(
        steps=1,
        batch=2,
        demonstrations=8,
        validation=2,
        device="cpu",
        learning_rate=1e-9,
        out=str(tmp_path),
    )
    assert command("train_sft.py", settings) == 0
    folder = tmp_path / "checkpoints" / "step-00000001" / "model"
    assert f"next        python train_igpo.py --model {folder}\n" in capsys.readouterr().out
    train_sft.print_next(replace(settings, asks="last"), folder)
    assert f"train_igpo.py --model {folder} --asks last\n" in capsys.readouterr().out
    trained, base = weights.load(folder), weights.load(inputs["model"])
    assert all(
        (p - q).abs().max() < 1e-6
        for p, q in zip(trained.parameters(), base.parameters(), strict=True)
    )


def test_the_model_tiny_has_random_weights_of_the_seed():
    one, two, other = (
        load_start(SFTConfig(model="tiny", seed=seed, device="cpu"))[0] for seed in (1, 1, 2)
    )
    assert sum(p.numel() for p in one.parameters()) == 492_288 and one.config == ModelConfig.preset(
        "tiny"
    )
    assert one.head_weight.equal(two.head_weight) and not one.head_weight.equal(other.head_weight)
    thrifty, again = (
        load_start(SFTConfig(model="tiny", seed=s, recompute=True, offload=True, lora_rank=2))[0]
        for s in (1, 2)
    )
    assert thrifty.model.recompute and thrifty.model.offload
    assert not one.model.recompute and not one.model.offload
    a, b = (next(iter(adapters(model).values())).lora_A for model in (thrifty, again))
    assert not a.equal(b), "new adapters are of the seed, too"


# ---------------------------------------------------------------------------- stopping and going on


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_its_step_and_where_changes_no_bit(
    number, inputs, whole, tmp_path, monkeypatch, capfd
):
    """After every step, the last one included; no other checkpoint is due. A run that has ended is
    not trained again."""
    config = small_config(inputs, tmp_path, save_every=100)
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    start = "step 0"
    for step in (1, 2, 3):
        with monkeypatch.context() as patch:
            signalled(patch, train_sft, "sft_step", [number])
            assert command("train_sft.py", config) == 0
        out, err = capfd.readouterr()
        assert f"start       {start}" in out and "stopping after this step" in err
        assert (f"stopped after step {step} of 3; the same command goes on from there" in out) == (
            step < 3
        )
        assert ("next        python" in out) == (step == 3)
        assert [row["step"] for row in read_jsonl(tmp_path / "metrics.jsonl")] == [1, 2, 3][:step]
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
        start = latest_checkpoint(tmp_path)
    assert content(tmp_path) == content(whole)
    train_sft.main(config)
    assert f"start       {start}, the last step: nothing is left to do\n" in capfd.readouterr().out
    assert content(tmp_path) == content(whole)


@pytest.mark.parametrize(
    "numbers", [[signal.SIGINT] * 2, [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]]
)
def test_a_second_signal_stops_at_once_and_in_an_update_the_run_goes_back_to_its_last_checkpoint(
    numbers, inputs, whole, tmp_path, monkeypatch, capfd
):
    config = small_config(inputs, tmp_path, save_every=1)
    with monkeypatch.context() as patch:
        signalled(patch, train_sft, "sft_step", numbers, at_step=2)
        assert command("train_sft.py", config) == 130
    assert "stopped at once; the same command goes on from what was saved" in capfd.readouterr().err
    assert (tmp_path / "latest").read_text() == "step-00000001\n"
    assert command("train_sft.py", config) == 0 and content(tmp_path) == content(whole)


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--steps", "0"], "steps must be a whole number of at least 1"),
        (["--validation", "8"], "8 different trajectories are not enough to hold 8 out"),
        (["--data", "nowhere.jsonl"], "No such file or directory: 'nowhere.jsonl'"),
        (
            ["--max-tokens", "5000", "--pack-tokens", "5000"],
            "max_tokens is 5000, but the model reads 4096 tokens",
        ),
        (["--lerning-rate", "1"], "unknown flag --lerning-rate, did you mean --learning-rate?"),
    ],
)
def test_a_wrong_command_line_is_one_message_and_exit_code_2(
    flags, words, inputs, tmp_path, capsys
):
    assert command("train_sft.py", small_config(inputs, tmp_path), *flags) == 2
    err = capsys.readouterr().err
    assert words in err and "Traceback" not in err and not (tmp_path / "latest").exists()
