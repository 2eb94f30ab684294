"""A GPU that is not there: tensors of device cuda:0 whose numbers lie in the host's memory.

torch takes every way that it takes on a GPU: dispatch by device, CUDA's autocast, fused AdamW.
Mixed devices are refused, and whenever the host would wait for the device, the line is counted in
`waits`. Attention runs on the torch path. Import this before torch.
"""

import ctypes
import os
import subprocess
import traceback
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
TORCH = Path(find_spec("torch").origin).parent
LIBRARY = HERE.parents[1] / "build" / f"pretend_gpu-{os.stat(HERE / 'device.cpp').st_mtime_ns}.so"
if not LIBRARY.exists():
    LIBRARY.parent.mkdir(exist_ok=True)
    part = LIBRARY.with_suffix(f".{os.getpid()}")
    flags = [f"-I{TORCH}/include", f"-L{TORCH}/lib", f"-Wl,-rpath,{TORCH}/lib"]
    command = ["g++", "-std=c++20", "-shared", "-fPIC", HERE / "device.cpp", "-o", part]
    subprocess.run([*command, *flags, "-ltorch_cpu", "-lc10"], check=True)
    part.rename(LIBRARY)
ctypes.CDLL(str(LIBRARY), ctypes.RTLD_GLOBAL)

import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

aten, keys = torch.ops.aten, torch._C.DispatchKey
COPIES = {aten.copy_.default, aten._to_copy.default}
READS = {aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default}
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default}
waits: Counter = Counter()            # "file:line" of the project -> how often the host waited


def wait() -> None:
    for frame, line in traceback.walk_stack(None):
        path = frame.f_code.co_filename
        if "/minvenus/" in path or "/train_" in path:
            waits[f"{Path(path).name}:{line}"] += 1
            return


class OnDevice(torch.Tensor):
    @staticmethod
    def __new__(cls, host):
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, host.shape, strides=host.stride(), storage_offset=host.storage_offset(),
            dtype=host.dtype, device="cuda:0")  # fmt: skip
        tensor.host = host
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return execute(func, args, kwargs or {})

    def untyped_storage(self):
        return self.host.untyped_storage()

    def tolist(self):
        return self.cpu().tolist()

    def __getitem__(self, index):
        return super().__getitem__(torch.tensor(index) if isinstance(index, list) else index)


class Device(TorchDispatchMode):
    """From its beginning on tensors can be made on the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return execute(func, args, kwargs or {})


def inner(x):
    if type(x) is OnDevice:
        return x.host
    return torch.device("cpu") if isinstance(x, torch.device) and x.type == "cuda" else x


def execute(func, args, kwargs):
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    ours = {id(x.host): x for x in tensors if type(x) is OnDevice}
    if not ours and "cuda" not in str(kwargs.get("device")):
        return func(*args, **kwargs)
    composite = func.has_kernel_for_dispatch_key(keys.CompositeImplicitAutograd)
    if composite and not func.has_kernel_for_dispatch_key(keys.CPU):
        with Device():                                 # in inference mode it comes whole
            return func.decompose(*args, **kwargs)
    to_device = func not in COPIES or copied(func, args, kwargs)
    if func not in COPIES:
        check(func, tensors, bool(ours))
    with _disable_current_modes():
        result = compute(func, *tree_map(inner, (args, kwargs)))
        return tree_map(lambda x: wrapped(x, ours) if to_device else x, result)


def wrapped(x, ours):
    if not isinstance(x, torch.Tensor):
        return x
    with torch.inference_mode(x.is_inference()):
        return ours[id(x)] if id(x) in ours else OnDevice(x)


def copied(func, args, kwargs) -> bool:
    """Whether the result of a copy is on the device; copies from and to it are waited for."""
    free = kwargs.pop("non_blocking", args[2:] == (True,))
    from_device = type(args[0]) is OnDevice
    to_device = "cuda" in str(kwargs.get("device") or args[0].device)
    if func is aten.copy_.default:
        to_device, from_device = from_device, type(args[1]) is OnDevice
    if from_device != to_device and (from_device or not free):
        wait()
    return to_device


def check(func, tensors, ours) -> None:
    """Reads and indices from the host are waited for; of other tensors all are on one device."""
    indexed = func in INDEXED
    if func in READS or (indexed and any(x.dtype == torch.bool for x in tensors[1:])):
        wait()
    for x in tensors:
        if not ours or type(x) is OnDevice:
            continue
        if indexed and type(tensors[0]) is OnDevice:
            wait()
        elif x.dim() or "_fused" in str(func):         # else a number: any device takes it
            raise RuntimeError(f"tensors on cuda:0 and cpu: {func}, the latter {list(x.shape)}")


def compute(func, args, kwargs):
    if func is aten.mm.dtype:                          # only CUDA has it
        return args[0].float() @ args[1].float()
    if func is aten._fused_sdp_choice.default:
        return 0                                       # attention in plain operations
    return func(*args, **kwargs)


def tensor(data, device=None, host_tensor=torch.tensor, **options):
    """torch.tensor, which would copy to the device before any mode can see it."""
    return host_tensor(data, **options).to(device or "cpu")


def install() -> None:
    answers = {
        "is_available": True, "is_initialized": True, "device_count": 1, "_lazy_init": None,
        "is_current_stream_capturing": False, "empty_cache": None, "synchronize": None,
        "mem_get_info": (80 * 10**9, 80 * 10**9), "current_device": 0, "is_bf16_supported": True,
    }  # fmt: skip
    for name, value in answers.items():
        setattr(torch.cuda, name, lambda *_, value=value, **__: value)
    torch._C._set_multithreading_enabled(False)
    torch.__future__.set_overwrite_module_params_on_conversion(True)     # model.to makes new ones
    torch.tensor = tensor

    from minvenus.kernels import attention, paged, paged_triton

    def packed_attention(q, k, v, bounds, longest):
        return attention.attention_torch(q, k, v, bounds.host)

    def paged_attention(*tensors):
        with _disable_current_modes():
            return OnDevice(paged.paged_attention_torch(*(x.host for x in tensors[:-2])))

    attention.attention_triton = packed_attention
    paged_triton.paged_attention_triton = paged_attention
    Device().__enter__()                               # for the rest of the process
