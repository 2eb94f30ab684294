"""The plan before a run: its parts against bytes that exist, its peak against bytes counted at true
size."""

import re
import weakref
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import train_igpo
import train_sft
from minvenus.config import MODELS, ConfigError
from minvenus.engine import Engine
from minvenus.flags import parse_flags
from minvenus.igpo.loss import LossConfig
from minvenus.kernels import logprob
from minvenus.model.lora import add_adapters
from minvenus.model.precision import PRECISION, engine_model
from minvenus.model.qwen3 import Qwen3
from minvenus.train import checkpoint, parallel
from minvenus.train.optim import adamw
from minvenus.train.plan import TOTAL, check_memory, memory_plan, plan_table
from minvenus.train.presets import IGPO_PRESETS, SFT_PRESETS
from minvenus.train.settings import PAGE_SIZE, IGPOConfig, SFTConfig
from tests.train.runs import ROOT, command, made_up_update, small_config

SCRIPTS = {"train_sft.py": (SFTConfig, SFT_PRESETS), "train_igpo.py": (IGPOConfig, IGPO_PRESETS)}


def planned(preset: str, processes: int, script="train_igpo.py", **changes) -> dict[str, float]:
    config_class, presets = SCRIPTS[script]
    config = config_class(preset=preset, plan=True, **presets[preset] | changes)
    return memory_plan(config, processes, "cuda")


# ---------------------------------------------------------------------------------------- the parts


@pytest.mark.parametrize("rank", [0, 4])
def test_weights_gradients_and_moments_are_the_bytes_that_exist(rank):
    model = Qwen3(MODELS["tiny"])
    if rank:
        add_adapters(model, rank, seed=0)
    optimizer = adamw(model, (0.9, 0.95), 0.01)
    made_up_update(model, optimizer, 1)
    trained = [p for p in model.parameters() if p.requires_grad]
    moments = [x for state in optimizer.state.values() for x in state.values() if x.dim()]
    plan = memory_plan(SFTConfig(lora_rank=rank), 1, "cpu")
    assert plan["weights"] == sum(p.nbytes for p in model.parameters())
    assert plan["gradients"] == sum(p.nbytes for p in trained)
    assert plan["moments"] == sum(x.nbytes for x in moments)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_pages_engine_copy_and_reference_are_the_bytes_that_exist(device, monkeypatch):
    monkeypatch.setitem(PRECISION, "cpu", PRECISION[device])
    config = IGPOConfig(pages=64)
    model = Qwen3(MODELS["tiny"])
    engine = Engine(engine_model(model), config.pages, PAGE_SIZE)
    copy = [] if engine.runner.model is model else engine.runner.model.parameters()
    plan = memory_plan(config, 1, device)
    assert plan["pages"] == engine.runner.k_pages.nbytes + engine.runner.v_pages.nbytes
    assert plan["engine copy"] == sum(p.nbytes for p in copy)
    number = PRECISION[device].engine.itemsize
    assert plan["reference"] == sum(p.numel() for p in model.parameters()) * number
    for change in ({"lora_rank": 4}, {"loss": LossConfig(kl_coef=0.0)}):
        assert memory_plan(replace(config, **change), 1, device)["reference"] == 0
    frozen = memory_plan(replace(config, gain_policy="reference"), 1, device)
    assert frozen["pages"] == 2 * plan["pages"], "the start checkpoint has a cache of its own"
    frozen, current = (
        memory_plan(replace(config, gain_policy=policy), 2, device)["engine copy"]
        for policy in ("reference", "current")
    )
    assert frozen == 2 * current, "and as one of several processes a copy"


# --------------------------------------------------------------------------- the peak, at true size


class Counted(TorchDispatchMode):
    """Counts the bytes of all tensors that operations make, at their peak, beside those that were
    there. On the meta device they take no memory."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        inputs = [x for x in tree_leaves(args) if isinstance(x, torch.Tensor)]
        self.known.update(x.untyped_storage() for x in inputs)
        results = func(*args, **kwargs or {})
        for tensor in results if isinstance(results, tuple | list) else [results]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage() not in self.known:
                storage = tensor.untyped_storage()
                self.known.add(storage)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.freed, storage.nbytes())
        return results

    def freed(self, size):
        self.now -= size


class Attention(torch.autograd.Function):
    """As the kernel: keeps its inputs and its output."""

    @staticmethod
    def forward(ctx, q, k, v):
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors[:3])


class Norm(torch.autograd.Function):
    """As CUDA's kernel: keeps its input and a number for each row."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, grad):
        return torch.empty_like(ctx.saved_tensors[0])


def product(a, b, out_dtype):
    return a.new_empty(len(a), b.shape[1], dtype=out_dtype)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """On the meta device: one tensor of a kernel, where others would compute with several."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch.nn.functional, "rms_norm", lambda x, *_, **__: Norm.apply(x))
    monkeypatch.setattr(logprob, "multiplicand", lambda x: x)
    monkeypatch.setattr(torch, "mm", product)


def attend(layer, q, k, v):
    return Attention.apply(q, k, v)


@pytest.mark.parametrize("preset", ["qwen3-0.6b", "qwen3-4b-lora", "dr-venus-4b"])
def test_layers_head_and_scoring_at_true_size_are_within_a_tenth_of_the_plan(preset, as_on_a_gpu):
    """With two layers, in bfloat16; the largest step of the engine scores 4,096 tokens."""
    config = IGPOConfig(preset=preset, plan=True, **IGPO_PRESETS[preset])
    plan = memory_plan(config, 1, "cuda")
    with torch.device("meta"):
        model = Qwen3(replace(MODELS[config.model], num_hidden_layers=2)).to(torch.bfloat16)
    model.model.recompute = True
    head = model.head_weight.requires_grad_(not config.lora_rank)
    tokens = torch.ones(config.pack_tokens, dtype=torch.int64, device="meta")

    with Counted() as layers:
        hidden = model.model(tokens, tokens, attend)
        hidden.backward(torch.empty_like(hidden))
    assert plan["layers"] == pytest.approx(layers.peak - 2 * hidden.nbytes, rel=0.1)
    if not config.offload:
        depth = MODELS[config.model].num_hidden_layers
        assert plan["layer inputs"] == depth * hidden.nbytes

    model.zero_grad()
    trained = hidden.detach().requires_grad_()
    with Counted() as logits:
        logprob.token_logprobs(trained, head, tokens).sum().backward()
    assert plan["logits"] == pytest.approx(logits.peak, rel=0.1)

    with Counted() as scoring, torch.no_grad():
        hidden = model.model(tokens[:4096], tokens[:4096], attend)
        logprob.token_logprobs(hidden, head, tokens[:4096])
    assert plan["scoring"] == pytest.approx(scoring.peak, rel=0.1)


@pytest.mark.parametrize(
    ("preset", "processes", "card", "changes"),
    [
        ("qwen3-0.6b", 1, 24, {}),
        ("qwen3-4b-lora", 1, 80, {}),
        ("qwen3-4b-lora", 1, 48, {"max_context": 16_384, "pack_tokens": 16_384, "pages": 8256}),
        ("dr-venus-4b", 8, 80, {}),
    ],
)
def test_every_preset_fits_its_card(preset, processes, card, changes):
    room = card * 2**30 - 0.6e9  # CUDA's own context
    assert planned(preset, processes, **changes)[TOTAL] < room
    assert planned(preset, processes, "train_sft.py")[TOTAL] < room


# -------------------------------------------------------------------------------------- the scripts


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_flag_prints_the_table_and_loads_and_writes_nothing(
    script, tmp_path, capsys, monkeypatch
):
    for module in (train_sft, train_igpo):
        monkeypatch.setattr(module, "load_start", lambda config: pytest.fail("a model is loaded"))
    out = tmp_path / "run"
    config = IGPOConfig(out=str(out)) if script == "train_igpo.py" else small_config({}, out)
    assert command(script, config, "--plan") == 0
    printed = capsys.readouterr().out
    assert "device cpu\nGB of each process, of       1\n  weights " in printed and TOTAL in printed
    assert ("pages" in printed) == (script == "train_igpo.py")
    assert not out.exists()


def test_on_a_gpu_a_run_that_cannot_fit_is_refused_before_loading_with_the_numbers(monkeypatch):
    config = IGPOConfig(preset="qwen3-0.6b", plan=True, device="cuda", **IGPO_PRESETS["qwen3-0.6b"])
    check_memory(replace(config, device="cpu"), 1)  # on a CPU the system decides
    free = [planned("qwen3-0.6b", 1)[TOTAL]]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free[0], 0))
    check_memory(config, 1)
    free[0] -= 1
    monkeypatch.setattr(checkpoint, "start_model", lambda *_: pytest.fail("a model is loaded"))
    with pytest.raises(ConfigError, match=rf"^{free[0] / 1e9:.1f} GB .* --lora-rank") as caught:
        checkpoint.load_start(config)
    assert all(f"  {name} " in str(caught.value) for name in ("pages", "moments", TOTAL))


def test_the_tables_of_the_documentation_are_what_the_scripts_print():
    text = (ROOT / "docs" / "scale.md").read_text()
    pattern = r"^    \$ python (\S+) (.*--plan)\n((?:    [^$\n].*\n)+)"
    tables = re.findall(pattern, text, re.MULTILINE)
    shown = {(script, flags.split()[1]) for script, flags, _ in tables}
    names = ("qwen3-0.6b", "qwen3-4b-lora", "dr-venus-4b")
    assert shown >= {(script, name) for script in SCRIPTS for name in names}
    for script, flags, lines in tables:
        config_class, presets = SCRIPTS[script]
        printed = plan_table(parse_flags(config_class, flags.split(), presets=presets))
        assert lines.split() == printed.split(), flags


def test_a_rank_has_a_gpu_of_its_own_and_opens_none_on_a_cpu(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "3")
    parallel.use_device("cuda")
    monkeypatch.setattr(parallel, "size", lambda: 8)
    parallel.use_device("cpu")
    assert not chosen, "one process takes torch's first"
    parallel.use_device("cuda")
    assert chosen == [3]
