"""Whole runs on a pretended GPU, in a process of its own: MINVENUS_PRETEND_GPU=1."""
# ruff: noqa: E401, I001

import os
import shutil
from dataclasses import replace

import pytest

READY = os.environ.get("MINVENUS_PRETEND_GPU") == "1" and shutil.which("g++")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not READY, reason="needs its process and g++")]
if READY:
    from tests.gpu import device  # before torch
    import torch
    import infer, train_igpo, train_sft
    from minvenus.engine import Engine, Sampling
    from minvenus.files import read_jsonl
    from minvenus.igpo.loss import LossConfig
    from minvenus.model.precision import PRECISION, engine_model
    from minvenus.model.qwen3 import Qwen3
    from minvenus.settings import AgentConfig, InferConfig
    from minvenus.sft.dataset import Example
    from minvenus.train import checkpoint, update
    from minvenus.train.optim import adamw
    from minvenus.train.settings import IGPOConfig, SFTConfig
    from tests.mutants.mutant import applied, mutant
    from tests.train.runs import SMALL, parameters

    device.install()
BUGS = [
    ("train.checkpoint:restore", "counts[name].to(count_device)", "counts[name]"),
    ("train.pack:pack_logprobs", "model.head_weight.device", '"cpu"'),
    ("train.update:loss_inputs", ".to(logprobs.device, non_blocking=True)", ""),
    ("model.qwen3:Qwen3.packed", "positions.to(tokens.device, non_blocking=True)", "positions"),
    ("model.qwen3:Qwen3.logprobs", "sources.to(tokens.device, non_blocking=True)", "sources"),
    ("model.qwen3:RMSNorm.forward", "enabled=False", "dtype=torch.bfloat16"),
    ("model.precision:engine_model", "device=model.head_weight.device", 'device="cpu"'),
    ("kernels.attention:attention", "if uses_triton", "if not uses_triton"),
]


def waits_of(action, *arguments) -> int:
    device.waits.clear()
    action(*arguments)
    return device.waits.total()


def short_work(folder) -> None:
    """Updates with a checkpoint between them, two rollouts, a norm."""
    examples = [Example(torch.arange(n).int(), torch.arange(n) > 4) for n in (9, 12)]
    rows = [update.Row(x, torch.full((x.trained,), -3.0), torch.ones(x.trained)) for x in examples]
    config = IGPOConfig(loss=LossConfig(kl_coef=0.0))
    models = [Qwen3(SMALL, seed).to("cuda") for seed in (1, 2)]
    optimizers = [adamw(model, (0.9, 0.95), 0.01) for model in models]
    for i in (0, 0, 1):
        if i == 1:
            checkpoint.restore(folder / "checkpoints" / "step-00000001", models[1], optimizers[1])
        assert waits_of(update.backward, models[i], rows, config) == 1, device.waits
        update.optimizer_step(models[i], optimizers[i], 1e-3, 1.0)
        if not (folder / "latest").exists():
            checkpoint.save(folder, {"step": 1}, models[0], optimizers[0])
    assert torch.equal(*(parameters(model).cpu() for model in models))

    engine = Engine(engine_model(models[0]), pages=20, page_size=16)
    turns = [Sampling(tokens, presence_penalty=1.1) for tokens in (1, 9)]
    short, long = (waits_of(engine.generate, [[1, 2], [3]], turn) for turn in turns)
    assert long - short == 8, device.waits                   # one for each step
    x = torch.linspace(0, 3, 8, device="cuda").bfloat16()
    norm = models[0].model.layers[0].self_attn.q_norm
    with torch.autocast("cuda", torch.bfloat16):
        assert torch.equal(norm(x).cpu(), norm.cpu()(x.cpu())), "rounded as in the engine"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug[0])
def test_work_stays_on_the_device_with_few_waits_and_a_planted_bug_is_noticed(bug, tmp_path):
    short_work(tmp_path / "right")
    planted = mutant(0, bug[0], "", f"minvenus.{bug[0]}", *bug[1:])
    with applied(planted), pytest.raises((AssertionError, RuntimeError)):
        short_work(tmp_path / "wrong")


def test_the_four_ways_of_use(tmp_path, monkeypatch):
    """SFT as on a CPU that has a GPU's precision; IGPO resumed, with adapters; an answer."""
    sft = SFTConfig(out=str(tmp_path / "sft"), steps=1, demonstrations=24, validation=4, batch=4)
    train_sft.main(replace(sft, device="cuda"))
    monkeypatch.setitem(PRECISION, "cpu", PRECISION["cuda"])
    train_sft.main(replace(sft, device="cpu", out=str(tmp_path / "cpu")))
    metrics = [read_jsonl(tmp_path / name / "metrics.jsonl")[-1] for name in ("sft", "cpu")]
    assert metrics[0] == pytest.approx(metrics[1], rel=0.02)

    igpo = IGPOConfig(out=str(tmp_path / "igpo"), steps=2, questions=2, group=2, hops=1,
                      evaluate_questions=0, device="cuda")  # fmt: skip
    folder = train_igpo.main(igpo)
    for steps in (1, 2):
        train_igpo.main(replace(igpo, steps=steps, out=str(tmp_path / "resumed")))
    train_igpo.main(replace(igpo, steps=1, lora_rank=2, out=str(tmp_path / "lora")))
    metrics = [read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("igpo", "resumed")]
    assert metrics[0] == metrics[1] and max(row["advantage_max"] for row in metrics[0]) > 0
    agent = AgentConfig(model=str(folder), device="cuda", max_turns=2)
    assert infer.main(InferConfig(out=str(tmp_path / "infer"), agent=agent)).turns
