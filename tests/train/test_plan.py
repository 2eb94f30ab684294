"""The plan before a run: every part against the bytes that are there, the peak of a step against the process's own."""

import os
import re
from dataclasses import replace

import pytest
import torch

import train_igpo
import train_sft
from minvenus.config import MODELS, ConfigError
from minvenus.engine import Engine
from minvenus.flags import parse_flags
from minvenus.igpo.loss import LossConfig
from minvenus.model.lora import add_adapters
from minvenus.model.precision import PRECISION, engine_model
from minvenus.model.qwen3 import Qwen3
from minvenus.presets import IGPO_PRESETS, SFT_PRESETS
from minvenus.settings import IGPOConfig, SFTConfig, model_shape
from minvenus.train import plan as planning
from minvenus.train import run as running
from minvenus.train.optim import adamw
from minvenus.train.plan import Plan, check_memory, make_plan, plan_table, table
from tests.kernels.memory import peak_above
from tests.train.runs import ROOT, command, made_up_update, small_config

TINY = MODELS["tiny"]
PART = replace(
    MODELS["qwen3-0.6b"], num_hidden_layers=2, vocab_size=2048
)  # two layers of the 0.6B shape
DEVICE = {torch.float32: "cpu", torch.bfloat16: "cuda"}


def near(planned: float, measured: float) -> bool:
    return planned == pytest.approx(measured, rel=0.15)


def model_for(shape, rank: int, dtype=torch.float32) -> Qwen3:
    """As run.load_start makes it on a device whose products are in `dtype`."""
    model = Qwen3(shape)
    if rank:
        model = model.to(dtype)
        add_adapters(model, rank, 32.0, seed=0)
    return model


def kept_bytes(model: Qwen3, tokens: int, dtype) -> int:
    """What a forward pass keeps for the backward pass, each tensor once; parameters and their casts left out."""
    found: dict[int, int] = {}
    shapes = {p.shape for p in model.parameters()} | {
        p.T.shape for p in model.parameters() if p.dim() == 2
    }

    def keep(tensor):
        if not (tensor.dim() == 2 and tensor.shape in shapes):
            found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    ids = torch.arange(tokens) % model.config.vocab_size
    bounds = torch.tensor([0, tokens], dtype=torch.int32)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        kept = model.logprobs(
            ids, bounds, torch.arange(tokens - 1), ids[1:], dtype=dtype, every_row=True
        )
    del kept
    return sum(found.values())


# ------------------------------------------------------------------------------------------------- part by part, exact


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("shape", [TINY, PART], ids=["tiny", "0.6b"])
def test_weights_gradients_and_moments_are_the_bytes_that_exist(shape, rank):
    model = model_for(shape, rank)
    optimizer = adamw(model, (0.9, 0.95), 0.01)
    made_up_update(model, optimizer, 1) if not rank else None
    trained = [p for p in model.parameters() if p.requires_grad]
    plan = make_plan(SFTConfig(lora_rank=rank), shape, 1, "cpu")
    assert plan.of("weights") == sum(p.nbytes for p in model.parameters())
    assert plan.of("gradients") == sum(p.nbytes for p in trained)
    moments = sum(x.nbytes for state in optimizer.state.values() for x in state.values() if x.dim())
    assert plan.of("Adam") == 2 * plan.of("gradients") and (rank or moments == plan.of("Adam"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize(
    ("shape", "tokens", "recompute"),
    [(TINY, 700, False), (TINY, 700, True), (PART, 96, False)],
    ids=["tiny", "tiny-recompute", "0.6b"],
)
def test_what_the_layers_keep_is_what_autograd_saves(shape, tokens, recompute, rank, dtype):
    """One more layer keeps so much more: what is not of the layers cancels out."""
    config = SFTConfig(pack_tokens=tokens, max_tokens=tokens, recompute=recompute, lora_rank=rank)
    measured, planned = [], []
    for layers in (2, 3):
        own = replace(shape, num_hidden_layers=layers)
        model = model_for(own, rank, dtype)
        model.model.recompute = recompute
        measured.append(kept_bytes(model, tokens, dtype))
        planned.append(make_plan(config, own, 1, DEVICE[dtype]).of("layers"))
    assert (planned[1] - planned[0]) == pytest.approx(measured[1] - measured[0], rel=0.03)
    assert near(planned[1], measured[1])


@pytest.mark.parametrize("recompute", [False, True])
def test_several_processes_keep_layers_in_the_type_of_their_gathered_weights(recompute):
    """FSDP casts weights as it gathers them, so a layer is wholly in bfloat16 and there are no casts beside them."""
    config = SFTConfig(pack_tokens=96, max_tokens=96, recompute=recompute)
    model = Qwen3(PART).to(torch.bfloat16)
    model.model.recompute = recompute
    plan = make_plan(config, PART, 8, "cuda")
    assert near(plan.of("layers"), kept_bytes(model, 96, torch.bfloat16)) and not plan.of("casts")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_pages_engine_copy_and_reference_are_the_bytes_that_exist(device, monkeypatch):
    monkeypatch.setitem(PRECISION, "cpu", PRECISION[device])
    config = IGPOConfig(pages=64)
    for shape in (TINY, PART):
        model = Qwen3(shape)
        engine = Engine(engine_model(model), config.pages, planning.PAGE_SIZE)
        plan = make_plan(config, shape, 1, device)
        assert plan.of("pages") == engine.runner.k_pages.nbytes + engine.runner.v_pages.nbytes
        copy = engine.runner.model
        assert plan.of("engine copy") == (
            0 if copy is model else sum(p.nbytes for p in copy.parameters())
        )
        assert (
            plan.of("reference")
            == sum(p.numel() for p in model.parameters()) * PRECISION[device].engine.itemsize
        )
        assert make_plan(replace(config, lora_rank=4), shape, 1, device).of("reference") == 0
        assert make_plan(replace(config, loss=LossConfig(kl_coef=0.0)), shape, 1, device).of("reference") == 0
    assert make_plan(replace(config, gain_policy="reference"), TINY, 1, device).of(
        "pages"
    ) == 2 * make_plan(config, TINY, 1, device).of("pages"), (
        "the start checkpoint has a cache of its own"
    )


# ------------------------------------------------------------------------------------------------- the peak of a step

STEP = """
import torch
from minvenus.config import ModelConfig
from minvenus.model.lora import add_adapters
from minvenus.model.qwen3 import Qwen3
from minvenus.train.optim import adamw, optimizer_step
def step(shape, tokens, recompute, rank):
    model = Qwen3(shape)
    if rank:
        add_adapters(model, rank, 32.0, seed=0)
    model.model.recompute = recompute
    optimizer = adamw(model, (0.9, 0.95), 0.01)
    ids = torch.arange(tokens) % shape.vocab_size
    bounds, sources = torch.tensor([0, tokens], dtype=torch.int32), torch.arange(tokens - 1)
    for last in (False, True, False):                             # a step, and the first pack of the next
        model.logprobs(ids, bounds, sources, ids[1:], entropy=True)[0].sum().backward()
        if last:
            optimizer_step(model, optimizer, 1e-4, 1.0)
step(ModelConfig(16, 32, 1, 2, 1, head_dim=8, vocab_size=64), 16, {recompute}, {rank})
"""


@pytest.mark.parametrize(
    ("shape", "tokens", "recompute", "rank"), [(TINY, 2048, False, 8), (PART, 256, True, 0)]
)
def test_a_steps_peak_is_within_15_percent_of_the_plan(shape, tokens, recompute, rank, monkeypatch):
    monkeypatch.setenv(
        "MALLOC_MMAP_THRESHOLD_", "65536"
    )  # freed memory goes back to the system at once
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    measured = peak_above(
        STEP.format(recompute=recompute, rank=rank),
        f"step({shape!r}, {tokens}, {recompute}, {rank})",
    )
    config = SFTConfig(pack_tokens=tokens, max_tokens=tokens, recompute=recompute, lora_rank=rank)
    plan = make_plan(config, shape, 1, "cpu")
    assert near(plan.bytes, measured), (plan.bytes / 1e6, measured / 1e6)


# ----------------------------------------------------------------------------------------------------- many processes


def planned(preset: str, processes: int, presets=IGPO_PRESETS, cls=IGPOConfig, **changes) -> Plan:
    config = cls(preset=preset, plan=True, **presets[preset] | changes)
    return make_plan(config, model_shape(config.model), processes, "cuda")


def test_what_is_trained_is_split_over_processes_and_the_rest_is_not():
    one, eight = (
        planned("dr-venus-4b", 1, sequence_parallel=1),
        planned("dr-venus-4b", 8, sequence_parallel=1),
    )
    for name in ("weights", "Adam", "gradients", "reference"):
        assert eight.of(name) == one.of(name) / 8 > 0
    for name in ("engine copy", "pages"):
        assert eight.of(name) == one.of(name) > 0
    assert 0.49 * one.of("layers") < eight.of("layers") < 0.52 * one.of("layers"), (
        "in bfloat16 between layers, too"
    )
    assert eight.of("gathered") > 0 == one.of("gathered")
    assert eight.of("whole model") == one.of("weights") and one.of("whole model") == 0
    many = planned("dr-venus-4b", 64, SFT_PRESETS, SFTConfig)
    assert many.bytes == many.of("whole model") == one.of("weights") > many.peak("update"), (
        "loading is the most"
    )
    shared = planned("dr-venus-4b", 8, sequence_parallel=8)
    assert shared.of("layers") == eight.of("layers") / 8


def test_what_a_second_scorer_frozen_weights_and_the_head_take():
    size = 4_022_468_096
    for processes, copies in (
        (1, 1),
        (8, 2),
    ):  # the reference of one process is whole already; others gather one
        plan = planned("dr-venus-4b", processes, sequence_parallel=1, gain_policy="reference")
        assert plan.of("engine copy") == copies * 2 * size
    adapted = planned("qwen3-4b-lora", 1)
    assert adapted.of("weights") == 2 * size + adapted.of("gradients"), (
        "bfloat16, and adapters in float32"
    )
    few = {"pack_tokens": 16, "max_context": 16}
    gradient = 4 * 151_936 * 2560
    assert (
        planned("dr-venus-4b", 1, sequence_parallel=1, **few).of("temporary")
        == 8 * 16 * 151_936 + gradient
    )
    assert planned("qwen3-4b-lora", 1, **few).of("temporary") < gradient, "a frozen head has none"


@pytest.mark.parametrize(
    ("preset", "processes", "card", "rollouts", "changes"),
    [
        ("qwen3-0.6b", 1, 24, 7, {}),
        ("qwen3-4b-lora", 1, 80, 8, {}),
        ("dr-venus-4b", 8, 80, 1, {}),
        ("qwen3-4b-lora", 1, 48, 8, {"max_context": 16_384, "pack_tokens": 16_384, "pages": 8256}),
    ],
)
def test_every_preset_fits_its_card_with_a_tenth_to_spare(
    preset, processes, card, rollouts, changes
):
    plan = planned(preset, processes, **changes)
    assert (
        plan.bytes < 0.9 * card * 2**30 > planned(preset, processes, SFT_PRESETS, SFTConfig).bytes
    )
    assert f": {rollouts} rollouts at full length" in table([plan])


# --------------------------------------------------------------------------------------------------------- the scripts


def test_the_tables_of_the_documentation_are_what_the_scripts_print():
    scripts = {
        "train_sft.py": (SFTConfig, SFT_PRESETS),
        "train_igpo.py": (IGPOConfig, IGPO_PRESETS),
    }
    text = (ROOT / "docs" / "scale.md").read_text()
    tables = re.findall(
        r"^    \$ python (\S+) (.*--plan)\n((?:    [^$\n].*\n)+)", text, re.MULTILINE
    )
    assert {
        f"--preset {name}" in flags
        for name in ("qwen3-0.6b", "qwen3-4b-lora", "dr-venus-4b")
        for script in scripts
        for flags in [" ".join(f for s, f, _ in tables if s == script)]
    } == {True}
    for script, flags, shown in tables:
        cls, presets = scripts[script]
        printed = plan_table(parse_flags(cls, flags.split(), presets=presets))
        assert [line.strip() for line in shown.splitlines()] == [
            line.strip() for line in printed.splitlines()
        ], flags


@pytest.mark.parametrize("script", ["train_sft.py", "train_igpo.py"])
def test_the_flag_prints_the_table_and_loads_and_writes_nothing(
    script, tmp_path, capsys, monkeypatch
):
    for module in (train_sft, train_igpo):
        monkeypatch.setattr(module, "load_start", lambda config: pytest.fail("a model is loaded"))
    config = (
        small_config({}, tmp_path / "run")
        if script == "train_sft.py"
        else IGPOConfig(out=str(tmp_path / "run"))
    )
    assert command(script, config, "--plan") == 0
    out = capsys.readouterr().out
    assert "GB of each process, of         1\n" in out and "peak of update" in out
    assert ("128 rollouts at full length" in out) == (script == "train_igpo.py")
    assert not (tmp_path / "run").exists()


def test_a_plan_is_for_as_many_processes_as_share_a_pack():
    config = IGPOConfig(
        preset="dr-venus-4b", plan=True, device="cpu", **IGPO_PRESETS["dr-venus-4b"]
    )
    assert "GB of each process, of         8\n" in plan_table(config)
    with pytest.raises(
        ConfigError, match="sequence_parallel 3 must divide the model's kv heads, 8"
    ):
        plan_table(replace(config, sequence_parallel=3))


def test_on_a_gpu_a_run_that_cannot_fit_is_refused_before_loading_with_the_numbers(monkeypatch):
    config = IGPOConfig(preset="qwen3-0.6b", plan=True, device="cuda", **IGPO_PRESETS["qwen3-0.6b"])
    check_memory(replace(config, device="cpu"), 1)  # on a CPU the system decides
    plan = planned("qwen3-0.6b", 1)
    needed, update = plan.bytes, plan.peak("update")
    assert needed == plan.peak("rollouts") > update, "the larger of the two counts"
    free = [needed, (needed + update) / 2]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free[0], 0))
    check_memory(config, 1)
    free.pop(0)
    monkeypatch.setattr(running, "start_model", lambda *_: pytest.fail("a model is loaded"))
    with pytest.raises(ConfigError) as caught:
        running.load_start(config)
    message = str(caught.value)
    assert (
        f"this run needs {needed / 1e9:.1f} GB, {free[0] / 1e9:.1f} GB of the device are free"
        in message
    )
    assert all(word in message for word in ("pages", "Adam", "--lora-rank", "peak of rollouts"))
