"""Training in several processes (ranks), started by torchrun: who does what, and how they meet.

    weights    rows of every parameter, of its gradient and moments are split over the ranks (FSDP2)
    rollouts   question i of a step belongs to rank i mod N, whose engine has all weights
    credit     every rank gets the samples of all ranks and computes the same advantages
    update     every rank makes the same packs and runs its share of them; gradients are summed
    files      rank 0 writes them, grades answers and prints; the number of ranks changes no file

Ranks meet in collectives, which wait until all have come. So all of them must take the same way:
decisions are made from gathered data. Without torchrun there is one rank, and nothing here
communicates.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from minvenus.config import ConfigError
from minvenus.model.precision import precision_of, whole
from minvenus.model.qwen3 import Qwen3

T = TypeVar("T")
LONGEST_WAIT = timedelta(days=2)         # for the slowest rank: it may still be rolling out
FAILURE_WAIT = timedelta(seconds=5)      # for the other ranks, where an error may have come to all


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def use_device(device: str) -> None:
    """Under torchrun each rank has a GPU of its own."""
    if device == "cuda" and size() > 1:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


# --------------------------------------------------------------------------- beginning and end


@contextmanager
def processes() -> Iterator[None]:
    """The group of processes that torchrun has started, for a whole script, which ends with it.

    Rank 0 alone prints. An error that comes to all ranks is printed by rank 0, an error of one
    rank by that rank; the others, which fail because it is gone, print nothing.
    """
    if not dist.is_torchelastic_launched():
        yield
        return

    dist.init_process_group("gloo", timeout=LONGEST_WAIT)    # of the hosts; `shard` has NCCL's

    try:
        with ExitStack() as stack:
            if rank() > 0:
                nowhere = stack.enter_context(open(os.devnull, "w"))
                stack.enter_context(redirect_stdout(nowhere))
                stack.enter_context(redirect_stderr(nowhere))
            yield
    except Exception:
        if rank() != (failed_alone() or 0):
            leave_later(2)
        raise
    except (KeyboardInterrupt, SystemExit) as end:      # a second Ctrl-C; --help and wrong flags
        if rank() > 0:
            leave_later(end.code if isinstance(end, SystemExit) else 130)
        raise

    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)                  # gloo's threads can abort an interpreter that ends as usual


def leave_later(code) -> NoReturn:
    """End this process silently, and not first: torchrun ends the others, which may still print."""
    time.sleep(0.5)
    sys.exit(code)


def failed_alone() -> int | None:
    """For a rank that has failed: the one rank that failed, while others wait in a collective.

    None if all ranks have failed: then they can still do something together.
    """
    if size() == 1:
        return None
    store = dist.distributed_c10d._get_default_store()
    store.set(f"failed {rank()}", "")
    if not store.check(["alone"]):
        try:
            store.wait([f"failed {r}" for r in range(size())], FAILURE_WAIT)
        except dist.DistStoreError:
            store.compare_set("alone", "", str(rank()))
    return int(store.get("alone")) if store.check(["alone"]) else None


@contextmanager
def together() -> Iterator[None]:
    """Work that a rank does without the others. If it fails on one rank, all raise the error."""
    error, message = None, None
    try:
        yield
    except Exception as caught:
        error = caught
        mendable = isinstance(error, ConfigError | OSError)         # the user needs no traceback
        text = str(error) if mendable else "".join(traceback.format_exception(error))
        message = mendable, text

    for number, failure in enumerate(everywhere(message)):
        if number == rank() and error is not None:
            raise error
        if failure:
            mendable, text = failure
            kind = ConfigError if mendable else RuntimeError
            raise kind(f"rank {number}: {text}")


# -------------------------------------------------------------------------- work and decisions


def share(items: Sequence[T]) -> list[T]:
    """The items of this rank: every N-th."""
    return list(items[rank()::size()])


def gather(results: list[T]) -> list[T]:
    """The results of all ranks, in the order of their items: gather(share(items)) == items."""
    lists = everywhere(results)
    ordered = []
    for i in range(max(map(len, lists))):
        ordered += [results[i] for results in lists if i < len(results)]
    return ordered


def everywhere(value: T) -> list[T]:
    """The values of all ranks."""
    values: list[Any] = [value] * size()
    if size() > 1:
        dist.all_gather_object(values, value)
    return values


def on_rank_0(function: Callable[..., T], *arguments, **options) -> T:
    """The value of a call that rank 0 makes, on all ranks."""
    results = []
    with together():
        if rank() == 0:
            results.append(function(*arguments, **options))
    return gather(results)[0]


# ------------------------------------------------------------------------------------- weights


def shard(model: Qwen3) -> Qwen3:
    """Leave each rank its rows of the parameters; `logprobs` gathers them layer by layer.

    A step's loss is a sum over packs, so gradients are summed, in float32; FSDP alone would
    average them.
    """
    if size() == 1:
        return model
    from torch.distributed.fsdp import (  # here: slow to import
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    device = model.head_weight.device.type
    backend = "nccl" if device == "cuda" else "gloo"
    group = dist.new_group(backend=backend, timeout=LONGEST_WAIT)
    mesh = dist.DeviceMesh.from_group(group, device)
    # inputs are not cast: the angles of the rotation stay float32
    policy = MixedPrecisionPolicy(
        precision_of(model).compute, torch.float32, cast_forward_inputs=False
    )
    for module in (*model.model.layers, model):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        # a divide factor alone needs an operation that gloo does not have
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    register_fsdp_forward_method(model, "logprobs")
    return model


def whole_tensors(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The whole tensors by name, one by one into rank 0's memory; {} on other ranks."""
    gathered = {}
    for name, tensor in tensors:
        full = whole(tensor)
        if rank() == 0:
            gathered[name] = full.detach().cpu()
    return gathered
