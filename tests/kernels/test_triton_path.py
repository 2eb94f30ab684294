"""The way of a GPU in Triton's interpreter: SFT, a rollout with scoring, and an IGPO step of a
miniature model, with every attention call in the Triton kernels, beside plain torch."""

import pytest
import torch

from minvenus.agent.prompt import Notices
from minvenus.config import ModelConfig
from minvenus.engine import Engine, Sampling, runner
from minvenus.igpo.loss import LossConfig
from minvenus.kernels import attention as packed
from minvenus.kernels import paged
from minvenus.kernels.attention import TRITON_DEVICES
from minvenus.model.qwen3 import Qwen3
from minvenus.sft.dataset import Example
from minvenus.train.settings import IGPOConfig, SFTConfig
from minvenus.train.sft import sft_losses, validation_loss
from minvenus.train.update import backward, make_row, with_reference
from tests.agent import scripted
from tests.agent.scripted import TOKENIZER, Tools, budget, policy_for
from tests.kernels.cases import INTERPRETED, NEEDS_INTERPRETER
from tests.train.runs import gradients

pytestmark = NEEDS_INTERPRETER

if INTERPRETED:
    pytest.importorskip("triton")
    from minvenus.kernels import paged_triton

MINIATURE = ModelConfig(
    24,
    40,
    2,
    2,
    1,
    head_dim=16,
    vocab_size=TOKENIZER.size + 3,
    rope_theta=100.0,
    max_position_embeddings=2048,
)
SHORT = Notices(malformed="ERROR", last_turn="Answer.", context="Answer.")
SFT = SFTConfig(device="cpu", reduction="token-mean")
REFUSED = {
    "torch": [(packed, "attention_triton")],
    "triton": [
        (packed, "attention_torch"),
        (paged, "paged_attention_torch"),
        (runner, "DecodeCache"),
        (runner, "MergedModel"),
    ],
}


def miniature() -> Qwen3:
    model = Qwen3(MINIATURE, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter *= 10  # so that attention looks at something
    return model


@pytest.fixture(params=REFUSED, scope="module")
def path(request):
    """Attention on this path, and on no other."""

    def refuse(*_, **__):
        raise AssertionError(f"this is not the way of {request.param}")

    with pytest.MonkeyPatch.context() as patch:
        for module, name in REFUSED[request.param]:
            patch.setattr(module, name, refuse)
        if request.param == "triton":
            TRITON_DEVICES.add("cpu")
        yield request.param
        TRITON_DEVICES.discard("cpu")


RESULTS: dict[str, list[torch.Tensor]] = {}


def same_as_torch(path: str, name: str, *tensors: torch.Tensor) -> None:
    """pytest runs the plain path first; the other one must give its numbers."""
    expected = RESULTS.setdefault(name, tensors) if path == "torch" else RESULTS[name]
    for tensor, plain in zip(tensors, expected, strict=True):
        assert tensor.numel() and torch.isfinite(tensor).all()
        torch.testing.assert_close(tensor, plain, rtol=1e-4, atol=1e-4)


def example(length: int) -> Example:
    """Random tokens; the second half of them is trained."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(0, TOKENIZER.size, (length,), generator=generator)
    return Example(tokens.int(), torch.arange(length) >= length // 2)


EXAMPLES = [example(45), example(20)]


def test_a_step_of_sft(path):
    model = miniature()
    [loss] = sft_losses(model, EXAMPLES, SFT)
    loss.backward()
    grads = gradients(model)
    assert grads.norm() > 1e-3
    same_as_torch(path, "sft", loss.detach(), grads / grads.norm())
    assert validation_loss(model, EXAMPLES, SFT) == pytest.approx(loss.item(), abs=1e-5)


def test_a_rollout_with_scoring_and_a_step_of_igpo(path):
    """Two short turns, and layers that are computed again in the backward pass."""
    model = miniature()
    model.model.recompute = True
    end = TOKENIZER.im_end
    turns = [[[5, 6, end], [7, end]], [[8, end], [9, 9, end]]]
    policy = policy_for(
        lambda name, turn, attempt: turns[int(name[-1])][turn], pages=20, page_size=16, model=model
    )
    truth, scores = TOKENIZER.encode_untrusted("cat"), []

    with scripted.loop_for(policy, budget(2, 160, 20), notices=SHORT) as loop:
        episodes = loop.add(scripted.QUESTION, lambda q: Tools(), 2)
        for ended in loop.run():
            for episode in ended:
                starts = [turn.start for turn in episode.rollout.turns]
                scores += policy.engine.score_many([(episode.sequence, starts, truth)])[0]
    rollouts = [episode.rollout for episode in episodes]
    assert [len(rollout.turns) for rollout in rollouts] == [2, 2] and len(scores) == 4
    sampled = [x for rollout in rollouts for x in rollout.logprobs if x is not None]
    same_as_torch(path, "rollout", torch.tensor(sampled), torch.tensor(scores))

    config = IGPOConfig(device="cpu", loss=LossConfig(kl_coef=0.1), questions=1, group=2)
    rows = [make_row(rollouts[0], [0.5, 1.0]), make_row(rollouts[1], [1.5, -1.0])]
    numbers = backward(model, with_reference(rows, miniature(), config), config)
    grads = gradients(model)
    assert numbers["logprob_gap"] < 1e-4 and grads.norm() > 1e-3
    assert numbers["kl"] == pytest.approx(0, abs=1e-6)
    values = torch.tensor([numbers[name] for name in sorted(numbers)])
    same_as_torch(path, "igpo", values, grads / grads.norm())


@pytest.mark.parametrize("path", ["triton"], indirect=True)  # a CPU does not wait
def test_no_kernel_waits_for_the_device_to_learn_a_length(path, monkeypatch):
    """The launchers get the longest lengths as plain numbers."""
    longest = []
    for module, name in ((packed, "attention_triton"), (paged_triton, "paged_attention_triton")):
        real = getattr(module, name)

        def launch(*arguments, real=real):
            longest.append([type(x) for x in arguments if not isinstance(x, torch.Tensor)])
            return real(*arguments)

        monkeypatch.setattr(module, name, launch)
    engine = Engine(miniature().requires_grad_(False), pages=9, page_size=16)
    engine.generate([[1, 2, 3]], Sampling(2), n=2)
    list(sft_losses(miniature(), EXAMPLES[1:], SFT))
    assert {*map(tuple, longest)} == {(int,), (int, int)}, "of sequences; of queries and keys"
