"""Two processes give what one gives: the same rollouts and advantages, gradients to rounding; also
where their shares differ, and where one has nothing to do."""

from dataclasses import replace

import pytest
import torch

import train_igpo
from minvenus.config import ConfigError
from minvenus.evaluation import questions as question_files
from minvenus.files import latest_checkpoint, read_jsonl
from minvenus.igpo import credit as crediting
from minvenus.igpo.loss import LossConfig
from minvenus.model import qwen3
from minvenus.model.lora import adapters, add_adapters
from minvenus.model.precision import PRECISION
from minvenus.model.qwen3 import Qwen3
from minvenus.report.saved import load_batch, path_of
from minvenus.sft.dataset import Example
from minvenus.train import checkpoint
from minvenus.train.optim import adamw
from minvenus.train.pack import make_packs, rank_packs
from minvenus.train.parallel import gather, on_rank_0, rank, shard, share, together, whole
from minvenus.train.settings import IGPOConfig, SFTConfig
from minvenus.train.sft import sft_step, validation_loss
from minvenus.train.update import Row, train_on, with_reference
from tests.train.igpo_runs import small_igpo, small_web, with_gate
from tests.train.ranks import on_ranks
from tests.train.runs import SMALL, content, examples, lively_model

GROUPED = replace(
    SMALL, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
)  # heads for two ranks


def model_of(tied: bool = True, seed: int = 1) -> Qwen3:
    return lively_model(replace(GROUPED, tie_word_embeddings=tied), seed)


def adapted_model() -> Qwen3:
    """With adapters that count, of three rows for two ranks."""
    model = model_of()
    add_adapters(model, 3, seed=0)
    generator = torch.Generator().manual_seed(5)
    for adapter in adapters(model).values():
        adapter.lora_B.data.normal_(0.0, 0.1, generator=generator)
    return model


def difference(gradient, wanted) -> float:
    return float((gradient - wanted).norm() / wanted.norm())


def watched_optimizer(model) -> tuple[torch.optim.Optimizer, list[torch.Tensor]]:
    """An optimiser that keeps the clipped gradients of its steps and moves nothing. Weights after a
    step would tell less: AdamW makes the same step of a gradient that is twice too large."""
    optimizer, seen = adamw(model, (0.9, 0.999), 0.0), []

    def step():
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        seen.append(torch.cat([whole(parameter.grad).flatten() for parameter in trained]))

    optimizer.step = step
    return optimizer, seen


# ------------------------------------------------------------------------------------ work and data


def test_shares_gathered_are_the_items_in_their_order_on_every_rank():
    def shares():
        called = []
        on_rank_0(called.append, "by rank 0")
        assert bool(called) == (rank() == 0), "by no other"
        return (
            share("abcde"),
            [pack.rows for pack in rank_packs(examples(5), 400)],
            gather(share(range(5))),
            gather(share([7])),
            gather(share([])),
            on_rank_0(lambda: f"rank {rank()}"),
        )

    first, second = on_ranks(2, shares)
    same = ([0, 1, 2, 3, 4], [7], [], "rank 0")
    packs = [pack.rows for pack in make_packs(examples(5), 400)]
    assert len(packs) == 3
    assert first == (["a", "c", "e"], [packs[0], packs[2]], *same)
    assert second == (["b", "d"], [packs[1], []], *same), "empty where another has one more"
    assert shares() == (list("abcde"), packs, *same)


def test_an_error_of_one_rank_comes_to_all_with_what_it_says():
    def errors():
        found = []
        for kind in (ConfigError, ValueError):
            try:
                with together():
                    if rank() == 1:
                        raise kind("it broke")
            except Exception as error:
                found.append((type(error), str(error)))
        return found

    first, second = on_ranks(2, errors)
    assert second == [(ConfigError, "it broke"), (ValueError, "it broke")]
    assert first[0] == (ConfigError, "rank 1: it broke"), "the user can mend it: one line"
    assert (
        first[1][0] is RuntimeError
        and first[1][1].startswith("rank 1: Traceback")
        and "it broke" in first[1][1]
    )


# ---------------------------------------------------------------------------------------- gradients


def sft_numbers(tied: bool, pack_tokens: int):
    """(loss, norm, gradient) of a step on five trajectories, and the loss of two that are held
    out."""
    model = shard(model_of(tied))
    optimizer, seen = watched_optimizer(model)
    chosen = examples(5)
    config = SFTConfig(
        max_tokens=1, pack_tokens=pack_tokens, clip=0.05, reduction="trajectory-mean"
    )
    numbers = sft_step(model, optimizer, chosen, 1e-3, config)
    assert numbers["grad_norm"] > 0.1, "so it is clipped"
    held_out = validation_loss(model, chosen[:2], replace(config, pack_tokens=2000))
    return numbers["loss"], numbers["grad_norm"], seen[0], held_out


def test_sft_in_two_processes_has_the_gradient_of_one():
    """In three packs, so that one rank has more, and in one pack, so that one rank has none; the
    head tied or not."""
    cases = [(True, 400), (True, 2000), (False, 400), (False, 2000)]
    assert [len(make_packs(examples(5), tokens)) for _, tokens in cases[:2]] == [3, 1]
    alone = [sft_numbers(*case) for case in cases]
    for results in on_ranks(2, lambda: [sft_numbers(*case) for case in cases]):
        for (loss, norm, gradient, held_out), one in zip(results, alone, strict=True):
            assert difference(gradient, one[2]) < 1e-6
            assert (loss, norm, held_out) == pytest.approx((one[0], one[1], one[3]), rel=1e-6)


TOKENS = 700
IGPO = IGPOConfig(minibatches=2, max_context=100, clip=0.1, device="cpu")


def rollout_rows() -> list[Row]:
    """Seven rollouts in three groups, the second of which has no signal."""
    generator = torch.Generator().manual_seed(5)
    rows = []
    lengths, advantages = (90, 41, 77, 60, 30, 95, 52), (1.0, -1.0, 0.0, 0.0, 0.5, -1.5, 1.0)
    for length, advantage in zip(lengths, advantages, strict=True):
        tokens = torch.randint(TOKENS, (length,), generator=generator).int()
        positions = torch.arange(length)
        example = Example(tokens, (positions > 9) & (positions % 2 == 0))
        column = torch.ones(example.trained)
        rows.append(Row(example, -6.0 * column, advantage * column))
    return rows


def igpo_numbers(tokens: int, tied: bool, kl_coef: float, aggregate: str):
    """The numbers of an update on these rows, and the gradients of its mini-batches."""
    loss = LossConfig(kl_coef=kl_coef, aggregate=aggregate)
    config = replace(IGPO, pack_tokens=tokens, loss=loss)
    model, reference = shard(model_of(tied)), shard(model_of(tied, seed=2).requires_grad_(False))
    optimizer, seen = watched_optimizer(model)
    rows = with_reference(rollout_rows(), reference, config) if kl_coef else rollout_rows()
    return train_on(rows, model, optimizer, config, 1), seen


def test_igpo_in_two_processes_has_the_gradients_and_numbers_of_one(monkeypatch):
    """Packs of 100 tokens hold a rollout each, so their numbers differ; one of 768 holds all, so
    that one rank has none; the head tied or not."""
    with_gate(monkeypatch, 100.0)
    cases = [
        (tokens, tied, kl_coef, aggregate)
        for tokens, tied in ((100, True), (768, True), (100, False))
        for kl_coef, aggregate in ((0.05, "seq-mean-token-mean"), (0.0, "token-mean"))
    ]
    alone = [igpo_numbers(*case) for case in cases]
    for results in on_ranks(2, lambda: [igpo_numbers(*case) for case in cases]):
        for (numbers, gradients), (expected, slopes) in zip(results, alone, strict=True):
            assert expected["updates"] == 2 and expected["grad_norm"] > 0.1, "so it is clipped"
            assert all(difference(*pair) < 1e-6 for pair in zip(gradients, slopes, strict=True))
            assert numbers == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_as_on_a_gpu_gradients_of_bfloat16_products_are_summed_in_float32(monkeypatch):
    exact = sft_numbers(True, 400)
    monkeypatch.setitem(PRECISION, "cpu", PRECISION["cuda"])
    alone = sft_numbers(True, 400)
    rotate, angles = qwen3.rotate, set()
    monkeypatch.setattr(
        qwen3, "rotate", lambda x, cos, sin: angles.add(cos.dtype) or rotate(x, cos, sin)
    )
    for (loss, _, gradient, _), kinds in on_ranks(2, lambda: (sft_numbers(True, 400), angles)):
        assert kinds == {torch.float32}, "angles of positions are not rounded"
        assert gradient.dtype == torch.float32 and loss == pytest.approx(exact[0], rel=1e-3)
        assert 0 < difference(gradient, exact[2]) < 2 * difference(alone[2], exact[2])

    def summed():
        model = shard(model_of())
        tokens = torch.arange(60) + 100 * rank()
        bounds = torch.tensor([0, 60], dtype=torch.int32)
        model.logprobs(tokens, bounds, torch.arange(59)).sum().backward()
        return torch.cat([whole(parameter.grad).flatten() for parameter in model.parameters()])

    gradient = on_ranks(2, summed)[0]
    assert (gradient != gradient.bfloat16()).float().mean() > 0.1, (
        "the sum of two is not rounded again"
    )


# -------------------------------------------------------------------------------------- checkpoints


def saved_checkpoint(lora: bool, out, read_from=None) -> dict[str, bytes]:
    """The files of a checkpoint after one update, or of one that was read."""
    model = adapted_model() if lora else model_of(tied=False, seed=3 if read_from else 1)
    model = shard(model)
    optimizer = adamw(model, (0.9, 0.95), 0.01)
    if read_from:
        checkpoint.restore(latest_checkpoint(read_from), model, optimizer)
    else:
        for i, parameter in enumerate(own for own in model.parameters() if own.requires_grad):
            parameter.grad = torch.ones_like(parameter) * (i + 1)
        optimizer.step()
    checkpoint.save(out, {"step": 1, "data": "data"}, model, optimizer)
    return content(out)


@pytest.mark.parametrize("lora", [False, True])
def test_a_checkpoint_has_the_same_bytes_whoever_wrote_it_and_whoever_read_it(lora, tmp_path):
    """Also with three ranks, whose shares of the rows differ: 16 rows are 6, 6 and 4, 8 are 3, 3
    and 2."""
    for name in ("one", "two", "one to three", "three to one"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").touch()
    one = saved_checkpoint(lora, tmp_path / "one")
    assert on_ranks(2, lambda: saved_checkpoint(lora, tmp_path / "two"))[0] == one
    assert (
        on_ranks(3, lambda: saved_checkpoint(lora, tmp_path / "one to three", tmp_path / "one"))[0]
        == one
    )
    assert saved_checkpoint(lora, tmp_path / "three to one", tmp_path / "one to three") == one


# --------------------------------------------------------------------------------------- whole runs


def sampled_run(out, monkeypatch, **changes) -> tuple[IGPOConfig, list]:
    """Settings of a run of the base model on few questions, and the credit of its steps, kept as it
    runs."""
    values = {"max_turn_tokens": 48, "rollouts_every": 1, "group": 4, "temperature": 1.5} | changes
    config = small_igpo("tiny-base", out, **values)
    monkeypatch.setattr(
        question_files, "ToyWeb", lambda *_, **__: small_web(0, 0, config.evaluate_questions)
    )
    kept: list = []

    def credit(measured, recipe):
        kept.append(crediting.assign_credit(measured, recipe))
        return kept[-1]

    monkeypatch.setattr(train_igpo, "assign_credit", credit)
    return config, kept


@pytest.mark.parametrize("questions, policy, lora_rank", [(3, "current", 3), (1, "reference", 0)])
def test_a_run_in_two_processes_has_the_rollouts_and_advantages_of_one(
    questions, policy, lora_rank, tmp_path, monkeypatch
):
    """Of three questions one rank has two, of one question a rank has none, nor has it any of the
    one that is held out."""
    config, kept = sampled_run(
        tmp_path / "one",
        monkeypatch,
        steps=2,
        questions=questions,
        evaluate_questions=1,
        gain_policy=policy,
        kl_coef=0.01,
        lora_rank=lora_rank,
    )

    def run():
        kept.clear()
        train_igpo.main(replace(config, out=str(tmp_path / "two")))
        return kept

    train_igpo.main(config)
    alone = [*kept]
    first, second = on_ranks(2, run)
    assert first == second, "to the last bit"
    for step in (1, 2):
        one, two = (load_batch(path_of(tmp_path / name, step)) for name in ("one", "two"))
        assert [m.rollout.tokens for m in two.samples] == [m.rollout.tokens for m in one.samples]
        assert len(one.samples) == 4 * questions
        assert [m.group for m in two.samples] == [m.group for m in one.samples]
        wanted = alone[step - 1].advantages
        for found, row in zip(first[step - 1].advantages, wanted, strict=True):
            assert found == pytest.approx(row, abs=1e-4)
    assert any(any(row) for credit in alone for row in credit.advantages), "something to learn"
    metrics = [read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("one", "two")]
    assert len(metrics[0]) == 2, "one process writes them"
    for one, two in zip(*metrics, strict=True):
        pages = one.pop("pages_peak")
        assert 0 < two.pop("pages_peak") <= pages - (questions > 1), "of the rank with most"
        assert two == pytest.approx(one, rel=1e-2, abs=1e-3)
