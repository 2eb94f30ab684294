"""Adapters in two processes: the gradients of one, merged weights that are whole, runs that go on in two and in one."""

import signal
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch

import train_igpo
import train_sft
from minvenus.evaluation import questions as question_files
from minvenus.files import read_jsonl
from minvenus.model import weights
from minvenus.model.lora import adapters, add_adapters, plain_weight, switched_off
from minvenus.model.precision import engine_model
from minvenus.train.parallel import rank, shard, whole
from minvenus.train.update import sft_step, validation_loss
from tests.train.igpo_runs import small_igpo, small_web
from tests.train.ranks import on_ranks
from tests.train.runs import content, examples, signalled, small_config, write_inputs
from tests.train.test_parallel import difference, model_of, watched_optimizer


def adapted_numbers(width: int = 1, recompute: bool = False):
    """(loss, gradient of the adapters, loss of the base, merged weights, what the engine has) of one step."""
    model = model_of()
    add_adapters(model, 3, 6.0, seed=0)                                # three rows for two ranks
    generator = torch.Generator().manual_seed(5)
    for adapter in adapters(model).values():
        adapter.lora_B.data.normal_(0.0, 0.1, generator=generator)
    model = shard(model, width)
    model.model.recompute = recompute
    optimizer, seen = watched_optimizer(model)
    loss = sft_step(model, optimizer, examples(5), 0.0, 1e9, 400, "token-mean")["loss"]
    with switched_off(model):
        base = validation_loss(model, examples(2), 2000, "token-mean")
    names = [name for name in model.state_dict() if name.endswith(".weight")]
    merged = torch.cat([whole(plain_weight(model, name)).flatten() for name in names])
    copy = engine_model(model)
    assert copy is not model and not adapters(copy)
    return loss, seen[0], base, merged, torch.cat([p.flatten() for p in copy.state_dict().values()])


@pytest.mark.parametrize("width", [1, 2])
def test_adapters_in_two_processes_have_the_gradient_of_one(width):
    loss, gradient, base, merged, engine = adapted_numbers()
    plain = validation_loss(model_of(), examples(2), 2000, "token-mean")
    assert base == pytest.approx(plain, rel=1e-6), "switched off it is the base"
    for other in on_ranks(2, lambda: adapted_numbers(width, recompute=True)):
        assert other[0] == pytest.approx(loss, rel=1e-5) and other[2] == pytest.approx(base, rel=1e-5)
        assert difference(other[1], gradient) < 1e-5
        assert difference(other[3], merged) < 1e-6 and difference(other[4], engine) < 1e-6
        assert torch.equal(other[3], other[4]), "the engine has the merged weights"


def test_runs_with_adapters_in_two_processes_go_on_byte_for_byte_and_load_in_one(tmp_path, monkeypatch):
    monkeypatch.setattr(question_files, "ToyWeb", lambda *_, **__: small_web(0, 0, 0))
    sft = small_config(write_inputs(tmp_path), tmp_path / "sft", lora_rank=3)
    igpo = small_igpo("tiny-base", tmp_path / "igpo", max_turn_tokens=48, evaluate_questions=0, steps=2, lora_rank=3,
                      kl_coef=0.1)
    runs = [(train_sft, "sft_step", sft), (train_igpo, "igpo_update", igpo)]

    def in_two():
        for script, update, config in runs:
            script.main(config)
            stopped = replace(config, out=config.out + " stopped")
            with ExitStack() as stack:
                if rank() == 1:
                    patch = stack.enter_context(pytest.MonkeyPatch.context())
                    signalled(patch, script, update, [signal.SIGTERM])
                script.main(stopped)
            script.main(stopped)

    on_ranks(2, in_two)
    for script, _, config in runs:
        whole_run = content(config.out)
        assert content(config.out + " stopped") == whole_run and any("adapter" in name for name in whole_run)
        in_one = script.main(replace(config, out=config.out + " one"))
        two, one = (read_jsonl(f"{config.out}{name}/metrics.jsonl") for name in ("", " one"))
        assert [row["loss"] for row in two] == pytest.approx([row["loss"] for row in one], rel=1e-4, abs=1e-6)
        merged = weights.load(in_one).state_dict()
        for name, tensor in weights.load(script.main(config)).state_dict().items():
            torch.testing.assert_close(tensor, merged[name], rtol=0, atol=1e-3)
