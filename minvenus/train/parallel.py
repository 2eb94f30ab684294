"""Training in several processes (ranks), started by torchrun: who does what, and how they stay together.

    weights    rows of every parameter, of its gradient and moments are split over the ranks (FSDP2)
    rollouts   question i of a step belongs to rank i mod N, whose engine has a whole copy of the weights
    credit     measurements of all rollouts go to every rank, and every rank computes the same advantages
    update     every rank makes the same packs and runs its share of them; gradients are summed
    files      rank 0 writes them, grades answers and speaks; nothing in them depends on the number of ranks

With --sequence-parallel P neighbouring ranks run one pack together (sequence.py).

Ranks work together in collectives, which wait until all have come. So all of them must take the same way: decisions
are made from gathered data. Without torchrun there is one rank, and nothing here communicates.
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
from minvenus.model.precision import precision_of
from minvenus.model.qwen3 import Qwen3
from minvenus.model.split import whole
from minvenus.settings import IGPOConfig, SFTConfig
from minvenus.train.sequence import split_sequences

T = TypeVar("T")
LONGEST_WAIT = timedelta(days=2)         # for the slowest rank: it may still be rolling out
FAILURE_WAIT = timedelta(seconds=5)      # for the others, where an error has come to all ranks


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


# ----------------------------------------------------------------------------------------------- beginning and end


@contextmanager
def processes() -> Iterator[None]:
    """For a whole script, which ends with it: the group of processes that torchrun has started, if it has. Rank 0 alone
    prints. An error that comes to all ranks is rank 0's to tell; otherwise it is told by the rank that failed alone,
    and the others, which fail because that one is gone, leave without a word."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=LONGEST_WAIT)
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
    except (KeyboardInterrupt, SystemExit) as end:           # a second Ctrl-C; --help and flags that are wrong
        if rank() > 0:
            leave_later(end.code if isinstance(end, SystemExit) else 130)
        raise
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)                      # gloo's threads can abort an interpreter that ends in the usual way


def leave_later(code) -> NoReturn:
    """End this process without a word, and not first: torchrun then ends the others, before they have told why."""
    time.sleep(0.5)
    sys.exit(code)


def failed_alone() -> int | None:
    """For a rank that has failed: the rank that failed without the others, which it has left in a collective. None if
    all have failed: then they can still do something together."""
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
    """Work that a rank does without the others. Where it fails on one rank, all raise the error."""
    error = None
    try:
        yield
    except Exception as caught:
        error = caught
    kept = None
    if error is not None:
        mendable = isinstance(error, ConfigError | OSError)
        kept = mendable, str(error) if mendable else "".join(traceback.format_exception(error))
    for failed, found in enumerate(everywhere(kept)):
        if failed == rank() and error is not None:
            raise error
        if found:
            mendable, text = found
            raise (ConfigError if mendable else RuntimeError)(f"rank {failed}: {text}")


def check_ranks(config: SFTConfig | IGPOConfig, kv_heads: int) -> None:
    """Refuse numbers of processes that do not fit the settings or the model."""
    ranks, shared = size(), config.sequence_parallel
    if ranks % shared or kv_heads % shared:
        raise ConfigError(f"sequence_parallel {shared} must divide the number of processes, {ranks}, and of the "
                          f"model's kv heads, {kv_heads}")
    what, least = ("questions", ranks) if isinstance(config, IGPOConfig) else ("batch", ranks // shared)
    if getattr(config, what) < least:
        raise ConfigError(f"{ranks} processes need --{what} of at least {least}, not {getattr(config, what)}")


# ------------------------------------------------------------------------------------------------ work and decisions


def share(items: Sequence[T]) -> list[T]:
    """This rank's items: every N-th."""
    return list(items[rank()::size()])


def gather(mine: list[T], each: int = 1, width: int = 1) -> list[T]:
    """The results of all ranks on every rank, in the order of the items: gather(share(items)) == items. An item has
    `each` results; `width` neighbouring ranks have worked on the same items."""
    lists = everywhere(mine)[::width]
    longest = max(map(len, lists))
    return [result for i in range(0, longest, each) for own in lists for result in own[i:i + each]]


def everywhere(value: T) -> list[T]:
    """The values of all ranks."""
    values: list[Any] = [value] * size()
    if size() > 1:
        dist.all_gather_object(values, value)
    return values


def on_rank_0(function: Callable[..., T], *arguments, **options) -> T:
    """The value of a call that rank 0 makes, on all ranks."""
    mine = []
    with together():
        if rank() == 0:
            mine.append(function(*arguments, **options))
    return gather(mine)[0]


def share_packs(packs: Sequence[T], width: int) -> list[T | None]:
    """The packs that this rank runs, `width` neighbouring ranks the same ones. None where others have one more: then
    it has to run `idle`."""
    groups = size() // width
    own: list[T | None] = list(packs[rank() // width::groups])
    rounds = -(-len(packs) // groups)
    return own + [None] * (rounds - len(own))


def idle(model: Qwen3) -> Tensor:
    """A forward pass that counts nothing, 0 with a gradient of 0: ranks gather a layer's weights together, so all run
    equally many."""
    token, bounds = torch.zeros(1, dtype=torch.int64), torch.tensor([0, 1], dtype=torch.int32)
    on_device = token.to(model.head_weight.device)
    return model.logprobs(on_device, bounds, token[:0], on_device[:0]).sum()


# --------------------------------------------------------------------------------------------------------- weights


def shard(model: Qwen3, width: int = 1) -> Qwen3:
    """Leave each rank its rows of the parameters; `logprobs` gathers them layer by layer, in the type of the products.
    `width` ranks share a pack. The loss of a step is a sum over packs, so gradients are summed, in float32, where FSDP
    by itself would average."""
    if size() == 1:
        return model
    from torch.distributed.fsdp import (  # slow to import
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    if width > 1:
        split_sequences(model, width)
    mesh = dist.init_device_mesh(model.head_weight.device.type, (size(),))
    # inputs are not cast: the angles of the rotation stay float32
    policy = MixedPrecisionPolicy(precision_of(model).compute, torch.float32, cast_forward_inputs=False)
    for module in (*model.model.layers, model):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        module.set_force_sum_reduction_for_comms(True)       # a factor alone needs an operation that gloo does not have
        module.set_gradient_divide_factor(1.0)
    register_fsdp_forward_method(model, "logprobs")
    return model


def gathered(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The whole tensors by name, gathered one after the other into rank 0's memory; nothing on other ranks."""
    if size() == 1:
        return dict(tensors)
    found = {}
    for name, tensor in tensors:
        full = whole(tensor)
        if rank() == 0:
            found[name] = full.detach().cpu()
    return found
