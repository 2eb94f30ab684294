"""Two processes give what one gives: the same rollouts and advantages, gradients to rounding; also where their shares
differ, where one has nothing to do, and where two share a sequence."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import train_igpo
from minvenus.config import ConfigError
from minvenus.evaluation import questions as question_files
from minvenus.files import latest_checkpoint
from minvenus.igpo import credit as crediting
from minvenus.igpo.loss import LossConfig
from minvenus.model import qwen3
from minvenus.model.lora import adapters, add_adapters
from minvenus.model.precision import PRECISION
from minvenus.model.qwen3 import Qwen3
from minvenus.report.saved import load_batch, path_of
from minvenus.settings import IGPOConfig
from minvenus.sft.dataset import step_packs
from minvenus.train import checkpoint, parallel
from minvenus.train import run as running
from minvenus.train.optim import adamw
from minvenus.train.parallel import (
    gather,
    idle,
    on_rank_0,
    rank,
    shard,
    share,
    share_packs,
    together,
    whole,
)
from minvenus.train.update import Row, igpo_update, sft_step, validation_loss
from minvenus.types import Question
from tests.train.igpo_runs import small_igpo, small_web
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
    add_adapters(model, 3, 6.0, seed=0)
    generator = torch.Generator().manual_seed(5)
    for adapter in adapters(model).values():
        adapter.lora_B.data.normal_(0.0, 0.1, generator=generator)
    return model


def difference(gradient, wanted) -> float:
    return float((gradient - wanted).norm() / wanted.norm())


def watched_optimizer(model) -> tuple[torch.optim.Optimizer, list[torch.Tensor]]:
    """An optimiser that keeps the clipped gradients of its steps and moves nothing. Weights after a step would tell
    less: AdamW makes the same step of a gradient that is twice too large."""
    optimizer, seen = adamw(model, (0.9, 0.999), 0.0), []

    def step():
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        seen.append(torch.cat([whole(parameter.grad).flatten() for parameter in trained]))

    optimizer.step = step
    return optimizer, seen


# ------------------------------------------------------------------------------------------------------ work and data


def test_shares_gathered_are_the_items_in_their_order_on_every_rank():
    def shares():
        pairs = [x for i in share(range(5)) for x in (i, -i)]
        called = []
        on_rank_0(called.append, "by rank 0")
        assert bool(called) == (rank() == 0), "by no other"
        return (
            share("abcde"),
            gather(share(range(5))),
            gather(share([7])),
            gather(share([])),
            gather(pairs, each=2),
            gather(["both"], width=2),
            on_rank_0(lambda: f"rank {rank()}"),
            share_packs(["a", "b", "c"], 1),
        )

    first, second = on_ranks(2, shares)
    pairs = [0, 0, 1, -1, 2, -2, 3, -3, 4, -4]
    same = ([0, 1, 2, 3, 4], [7], [], pairs, ["both"], "rank 0")
    assert first == (["a", "c", "e"], *same, ["a", "c"])
    assert second == (["b", "d"], *same, ["b", None]), "None where another has one more"
    assert on_ranks(2, lambda: share_packs(["a", "b"], 2)) == [["a", "b"]] * 2, (
        "ranks that share packs have the same"
    )
    assert shares() == (list("abcde"), *same, ["a", "b", "c"])


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


def test_the_rollouts_of_a_question_stay_on_one_rank(monkeypatch):
    config = IGPOConfig(questions=3, group=4, device="cpu")
    loop = SimpleNamespace(add=lambda question, tools, n, **_: [question.id] * n, run=lambda: None)
    training = [Question(name, "?", ["!"]) for name in "abc"]
    source = question_files.QuestionSource([], training, per_step=3)
    whole_batch = train_igpo.add_questions(loop, source, 1, config)
    monkeypatch.setattr(parallel, "size", lambda: 2)
    own = []
    for number in (0, 1):
        monkeypatch.setattr(parallel, "rank", lambda number=number: number)
        own.append(train_igpo.add_questions(loop, source, 1, config))
    assert own == [whole_batch[:4] + whole_batch[8:], whole_batch[4:8]]


# ---------------------------------------------------------------------------------------------------------- gradients


def near(width: int) -> float:
    """How exactly numbers agree with those of one process: ranks that share a pack add in another order."""
    return 1e-6 if width == 1 else 1e-5


def sft_numbers(tied: bool, pack_tokens: int, width: int = 1):
    """(loss, norm, gradient) of a step on five trajectories, and the loss of two that are held out."""
    model = shard(model_of(tied), width)
    model.model.recompute = width > 1
    optimizer, seen = watched_optimizer(model)
    chosen = examples(5)
    numbers = sft_step(model, optimizer, chosen, 1e-3, 0.05, pack_tokens, "trajectory-mean")
    assert numbers["grad_norm"] > 0.1, "so it is clipped"
    return (
        numbers["loss"],
        numbers["grad_norm"],
        seen[0],
        validation_loss(model, chosen[:2], 2000, "token-mean"),
    )


def test_sft_in_two_processes_has_the_gradient_of_one():
    """In three packs, so that one rank has more, and in one pack, so that one rank has none; the head tied or not; both
    ranks share every pack."""
    cases = [(True, 400, 1), (True, 2000, 1), (False, 400, 1), (False, 2000, 1), (True, 400, 2)]
    assert [len(step_packs(examples(5), tokens)) for _, tokens, _ in cases[:2]] == [3, 1]
    alone = [sft_numbers(*case[:2]) for case in cases]
    for found in on_ranks(2, lambda: [sft_numbers(*case) for case in cases]):
        for (loss, norm, gradient, held_out), wanted, (_, _, width) in zip(
            found, alone, cases, strict=True
        ):
            assert difference(gradient, wanted[2]) < near(width)
            assert (loss, norm, held_out) == pytest.approx(
                (wanted[0], wanted[1], wanted[3]), rel=near(width)
            )


def rollout_rows() -> list[Row]:
    """Seven rollouts in three groups, the second of which has no signal."""
    generator = torch.Generator().manual_seed(5)
    rows = []
    for length, advantage in zip(
        (90, 41, 77, 60, 30, 95, 52), (1.0, -1.0, 0.0, 0.0, 0.5, -1.5, 1.0), strict=True
    ):
        tokens = torch.randint(TOKENS, (length,), generator=generator)
        sources = torch.arange(9, length - 1, 2)
        rows.append(
            Row(
                tokens,
                sources,
                torch.full(sources.shape, -6.0),
                torch.full(sources.shape, advantage),
            )
        )
    return rows


TOKENS = 700
IGPO = IGPOConfig(minibatches=2, max_context=100, clip=0.1, logprob_gap=100.0, device="cpu")


def igpo_numbers(tokens: int, tied: bool, kl_coef: float, aggregate: str, width: int = 1):
    """The numbers of an update on these rows, and the gradients of its mini-batches."""
    loss = LossConfig(kl_coef=kl_coef, aggregate=aggregate)
    config = replace(IGPO, pack_tokens=tokens, loss=loss)
    model, reference = (
        shard(model_of(tied), width),
        shard(model_of(tied, seed=2).requires_grad_(False), width),
    )
    optimizer, seen = watched_optimizer(model)
    return igpo_update(model, optimizer, rollout_rows(), reference, config, 1), seen


def test_igpo_in_two_processes_has_the_gradients_and_numbers_of_one():
    """Packs of 100 tokens hold a rollout each, so their numbers differ; one of 768 holds all, so that one rank has
    none; the head tied or not; both ranks share every pack."""
    cases = [
        (tokens, tied, kl_coef, aggregate, 1)
        for tokens, tied in ((100, True), (768, True), (100, False))
        for kl_coef, aggregate in ((0.05, "seq-mean-token-mean"), (0.0, "token-mean"))
    ]
    cases.append((100, True, 0.05, "seq-mean-token-mean", 2))
    alone = [igpo_numbers(*case[:-1]) for case in cases]
    for found in on_ranks(2, lambda: [igpo_numbers(*case) for case in cases]):
        for (numbers, gradients), (wanted, expected), case in zip(found, alone, cases, strict=True):
            assert wanted["updates"] == 2 and wanted["grad_norm"] > 0.1, "so gradients are clipped"
            assert all(
                difference(*pair) < near(case[-1]) for pair in zip(gradients, expected, strict=True)
            )
            assert numbers == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def test_as_on_a_gpu_gradients_of_bfloat16_products_are_summed_in_float32(monkeypatch):
    exact = sft_numbers(True, 400)
    monkeypatch.setitem(PRECISION, "cpu", PRECISION["cuda"])
    alone = sft_numbers(True, 400)
    rotate, angles = qwen3.rotate, set()
    monkeypatch.setattr(
        qwen3, "rotate", lambda x, cos, sin: angles.add(cos.dtype) or rotate(x, cos, sin)
    )
    for width in (1, 2):
        for (loss, _, gradient, _), kinds in on_ranks(
            2, lambda width=width: (sft_numbers(True, 400, width), angles)
        ):
            assert kinds == {torch.float32}, "angles of positions are not rounded"
            assert gradient.dtype == torch.float32 and loss == pytest.approx(exact[0], rel=1e-3)
            assert 0 < difference(gradient, exact[2]) < 2 * difference(alone[2], exact[2])

    def summed():
        model = shard(model_of())
        tokens = torch.arange(60) + 100 * rank()
        model.logprobs(
            tokens, torch.tensor([0, 60], dtype=torch.int32), tokens[:59] % 100, tokens[1:]
        ).sum().backward()
        return torch.cat([whole(parameter.grad).flatten() for parameter in model.parameters()])

    gradient = on_ranks(2, summed)[0]
    assert (gradient != gradient.bfloat16()).float().mean() > 0.1, (
        "the sum of two is not rounded again"
    )


# -------------------------------------------------------------------------------------------------------- checkpoints


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
    checkpoint.save(out, 1, model, optimizer, "data")
    return content(out)


@pytest.mark.parametrize("lora", [False, True])
def test_a_checkpoint_has_the_same_bytes_whoever_wrote_it_and_whoever_read_it(lora, tmp_path):
    """Also with three ranks, whose shares of the rows differ: 16 rows are 6, 6 and 4, 8 are 3, 3 and 2."""
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


# -------------------------------------------------------------------------------------------------- sequence parallel


def long_pack(width: int, every_row: bool, recompute: bool = False):
    """Log-probs, entropies, loss and gradient of three sequences, of 301 tokens in all: no multiple of two. The second
    rank begins in the middle of the second."""
    model = shard(model_of(), width)
    model.model.recompute = recompute
    tokens = torch.randint(TOKENS, (301,), generator=torch.Generator().manual_seed(3))
    sources = torch.tensor([3, 60, 61, 149, 150, 151, 249, 255, 299])
    bounds = torch.tensor([0, 62, 251, 301], dtype=torch.int32)
    logp, entropies = model.logprobs(
        tokens, bounds, sources, tokens[sources + 1], 0.7, entropy=True, every_row=every_row
    )
    loss = (logp * torch.linspace(-1.0, 2.0, len(sources))).sum()
    loss.backward()
    gradient = torch.cat([whole(parameter.grad).flatten() for parameter in model.parameters()])
    return logp.detach(), entropies, float(loss.detach()), gradient


@pytest.mark.parametrize("every_row", [True, False])
def test_two_ranks_that_share_a_pack_give_its_log_probs_and_gradient(every_row):
    wanted = long_pack(1, every_row)
    assert on_ranks(2, lambda: float(idle(shard(model_of(), 2)).detach())) == [0.0, 0.0], (
        "its one token is of one rank"
    )
    for found in on_ranks(
        2, lambda: [long_pack(2, every_row, recompute) for recompute in (False, True)]
    ):
        for logp, entropies, loss, gradient in found:
            assert torch.allclose(logp, wanted[0], atol=1e-5) and torch.allclose(
                entropies, wanted[1], atol=1e-5
            )
            assert (
                loss == pytest.approx(wanted[2], rel=1e-5)
                and difference(gradient, wanted[3]) < 1e-5
            )


# --------------------------------------------------------------------------------------------------------- whole runs


def sampled_run(out, monkeypatch, **changes) -> tuple[IGPOConfig, list]:
    """Settings of a run of the base model on few questions, and the credit of its steps, kept as it runs."""
    config = small_igpo("tiny-base", out, max_turn_tokens=48, rollouts_every=1, **changes)
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
    """Of three questions one rank has two, of one question a rank has none (a run of its own would be refused), nor has
    it any of the one that is held out."""
    monkeypatch.setattr(running, "check_ranks", lambda *_: None)
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
        assert len(one.samples) == 2 * questions
        assert [m.group for m in two.samples] == [m.group for m in one.samples]
        wanted = alone[step - 1].advantages
        assert any(any(row) for row in wanted), "there is something to learn"
        for found, row in zip(first[step - 1].advantages, wanted, strict=True):
            assert found == pytest.approx(row, abs=1e-4)
    metrics = [
        (tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("one", "two")
    ]
    assert [len(lines) for lines in metrics] == [2, 2], "one process writes them"
