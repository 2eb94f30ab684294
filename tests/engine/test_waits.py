"""What the host waits for in a step of the engine and in a pack of an update, as a GPU would see
it: reads of a tensor, copies to the device that block, and indices that the host has.

The calls of torch are watched on a CPU, in the way that a GPU runs: without the decode cache.
tests/gpu counts the waits of whole runs on a pretended device.
"""

import sys
from collections import Counter

import pytest
import torch
from torch.overrides import TorchFunctionMode

from minvenus.engine import Engine, Sampling
from minvenus.igpo.loss import LossConfig
from minvenus.sft.dataset import Example
from minvenus.train.batch import pack_stats
from minvenus.train.settings import IGPOConfig
from minvenus.train.update import Row, loss_inputs
from tests.engine.models import sharp_model

MODEL = sharp_model()
READS = ("tolist", "item", "__bool__", "__int__", "__float__", "__index__", "numpy", "nonzero")
OURS = ("/minvenus/engine/", "/minvenus/train/", "/minvenus/igpo/loss.py")


class Watch(TorchFunctionMode):
    """Counts what our own lines do: "wait", and "copy" for a copy that the host does not wait
    for."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = options or {}
        name = getattr(function, "__name__", "")
        caller = sys._getframe(1).f_code.co_filename
        if any(part in caller for part in OURS):
            if name in READS or self.blocks(name, arguments, options):
                self.counts["wait"] += 1
            elif options.get("non_blocking"):
                self.counts["copy"] += 1
        return function(*arguments, **options)

    def blocks(self, name, arguments, options) -> bool:
        if name in ("__getitem__", "__setitem__"):
            index = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
            return any(isinstance(part, list) for part in index)
        if name == "to":
            moves = [*arguments[1:2], options.get("device")]
            to_device = any(isinstance(x, torch.device | torch.Tensor) for x in moves)
            return to_device and not options.get("non_blocking")
        return name in ("cpu", "cuda") or (name == "tensor" and "device" in options)


def a_step(rows: int, **changes) -> Counter:
    """What one decoding step of so many rows does."""
    engine = Engine(MODEL, pages=400, page_size=4)
    engine.runner.decode_cache = None
    sequences = [engine.open([1 + i, 2, 3, 4, 5], i) for i in range(rows)]
    for sequence in sequences:
        engine.start(sequence, Sampling(9, **changes))
    for _ in range(3):
        engine.step()
    with Watch() as watch:
        engine.step()
    assert all(len(sequence.tokens) == 5 + 4 for sequence in sequences)
    return watch.counts


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize(
    ("changes", "copies"),
    [
        ({"temperature": 0}, 1),  # the integers
        ({"top_k": 9, "top_p": 0.9}, 2),  # and the uniform numbers
        ({"presence_penalty": 1.1}, 3),  # and the ids of this turn
    ],
)
def test_a_decoding_step_waits_once_whatever_its_rows(changes, copies, rows):
    assert a_step(rows, **changes) == {"wait": 1, "copy": copies}


def test_turns_with_other_settings_and_scores_in_one_step_cost_one_wait_more():
    engine = Engine(MODEL, pages=400, page_size=4)
    engine.runner.decode_cache = None
    for i, penalty in enumerate((0.0, 1.0, 2.0) * 3):
        engine.start(engine.open([1, 2, 3], i), Sampling(9, presence_penalty=penalty))
    engine.step()
    with Watch() as watch:
        engine.score([5, 6], [[7, 8]])  # two steps: the prefix, then the continuation
    assert watch.counts["wait"] == 1 + 2


def test_a_pack_waits_once_for_all_of_its_statistics():
    config = IGPOConfig(loss=LossConfig(kl_coef=0.1, dual_clip=3.0))
    example = Example(torch.arange(6, dtype=torch.int32), torch.arange(6) > 1)
    rows = [Row(example, torch.randn(4), torch.randn(4), torch.randn(4)) for _ in range(3)]
    with Watch() as watch:
        inputs = loss_inputs(rows, torch.randn(12), torch.ones(12))
        numbers = pack_stats(torch.tensor(1.0), torch.ones(12), inputs, config.loss)
    assert watch.counts == {"wait": 1, "copy": 4}
    assert {"loss", "entropy", "logprob_gap", "kl", "ratio_max", "clip_fraction"} <= {*numbers}
