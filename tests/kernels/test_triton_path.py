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
from minvenus.settings import IGPOConfig, SFTConfig
from minvenus.sft.dataset import Example
from minvenus.train.update import backward, make_row, sft_losses, validation_loss, with_reference
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
PATHS = ("torch", "triton")
SHORT = Notices(malformed="ERROR", last_turn="Answer.", context="Answer.")
close = {"rtol": 1e-4, "atol": 1e-4}


def model() -> Qwen3:
    made = Qwen3(MINIATURE, seed=1)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 2:
                parameter *= 10  # so that attention looks at something
    return made


@pytest.fixture(params=PATHS, scope="module")
def path(request):
    """Attention on this path, and on no other."""
    refused = {
        "torch": [(packed, "attention_triton")],
        "triton": [
            (packed, "attention_torch"),
            (paged, "paged_attention_torch"),
            (runner, "DecodeCache"),
            (runner, "MergedModel"),
        ],
    }

    def refuse(*_, **__):
        raise AssertionError(f"this is not the way of {request.param}")

    with pytest.MonkeyPatch.context() as patch:
        for module, name in refused[request.param]:
            patch.setattr(module, name, refuse)
        if request.param == "triton":
            TRITON_DEVICES.add("cpu")
        yield request.param
        TRITON_DEVICES.discard("cpu")


SEEN: dict[str, dict[str, object]] = {"torch": {}, "triton": {}}


def same_as_torch(path: str, name: str, tensors: list[torch.Tensor]) -> None:
    """pytest runs the plain path first; the other one must give its numbers."""
    SEEN[path][name] = tensors
    assert all(bool(torch.isfinite(x).all()) and x.numel() for x in tensors)
    for own, plain in zip(tensors, SEEN["torch"][name], strict=True):
        torch.testing.assert_close(own, plain, **close)


def example(length: int, seed: int) -> Example:
    """Random tokens; the second half of them is trained."""
    tokens = torch.randint(
        0, TOKENIZER.size, (length,), generator=torch.Generator().manual_seed(seed)
    )
    return Example(tokens.int(), torch.arange(length) >= length // 2)


EXAMPLES = [example(45, 1), example(20, 2)]
SFT = SFTConfig(max_tokens=100, pack_tokens=100, device="cpu")


def test_a_step_of_sft(path):
    trained = model()
    [loss] = sft_losses(trained, EXAMPLES, SFT)
    loss.backward()
    grads = gradients(trained)
    assert grads.norm() > 1e-3
    same_as_torch(path, "sft", [loss.detach(), grads / grads.norm()])
    assert validation_loss(trained, EXAMPLES, SFT) == pytest.approx(loss.item(), abs=1e-5)


def test_a_rollout_with_scoring_and_a_step_of_igpo(path):
    """Two short turns, and layers that are computed again in the backward pass."""
    trained = model()
    trained.model.recompute = True
    turns = [
        [[5, 6, TOKENIZER.im_end], [7, TOKENIZER.im_end]],
        [[8, TOKENIZER.im_end], [9, 9, TOKENIZER.im_end]],
    ]
    policy = policy_for(
        lambda name, turn, attempt: turns[int(name[-1])][turn],
        pages=20,
        page_size=16,
        model=trained,
    )
    truth, scores = TOKENIZER.encode_untrusted("cat"), []

    with scripted.loop_for(policy, budget(2, 160, 20), notices=SHORT) as loop:
        episodes = loop.add(scripted.QUESTION, lambda q: Tools(), 2)
        for ended in loop.run():
            requests = [(e.sequence, [turn.start for turn in e.rollout.turns], truth) for e in ended]
            scores += [x for own in policy.engine.score_many(requests) for row in own for x in row]
    rollouts = [episode.rollout for episode in episodes]
    assert [len(rollout.turns) for rollout in rollouts] == [2, 2] and len(scores) == 4 * len(truth)
    sampled = [x for rollout in rollouts for x in rollout.logprobs if x is not None]
    same_as_torch(path, "rollout", [torch.tensor(sampled), torch.tensor(scores)])

    config = IGPOConfig(device="cpu", loss=LossConfig(kl_coef=0.1), questions=1, group=2)
    rows = [make_row(rollouts[0], [0.5, 1.0]), make_row(rollouts[1], [1.5, -1.0])]
    numbers = backward(trained, with_reference(rows, model(), config), config)
    grads = gradients(trained)
    assert (
        numbers["logprob_gap"] < 1e-4
        and numbers["kl"] == pytest.approx(0, abs=1e-6)
        and grads.norm() > 1e-3
    )
    same_as_torch(
        path,
        "igpo",
        [torch.tensor([numbers[key] for key in sorted(numbers)]), grads / grads.norm()],
    )


@pytest.mark.parametrize("path", ["triton"], indirect=True)  # a CPU does not wait
def test_no_kernel_waits_for_the_device_to_learn_a_length(path, monkeypatch):
    """The launchers get the longest lengths as plain numbers."""
    given = []
    for module, name in ((packed, "attention_triton"), (paged_triton, "paged_attention_triton")):
        real = getattr(module, name)
        monkeypatch.setattr(
            module,
            name,
            lambda *a, real=real, **k: given.append([*a, *k.values()]) or real(*a, **k),
        )
    Engine(model().requires_grad_(False), pages=9, page_size=16).generate(
        [[1, 2, 3]], Sampling(2), n=2
    )
    list(sft_losses(model(), EXAMPLES[1:], SFT))
    for arguments in given:
        *_, longest = arguments
        numbers = longest if isinstance(longest, tuple) else [longest]
        assert all(type(x) is int for x in numbers)
