"""Kernels against their peers, interleaved in one run, so that a busy machine slows both: read the ratio, not the milliseconds.

    python -m benchmarks.bench_kernels [--quick] [--rounds N] [--only packed,decode,logprob,gpu] [--cpu-time]

packed    training attention over ragged sequences          peer: one SDPA call on the padded batch with a mask
decode    one token for 32 sequences, keys in pages         peer: SDPA on padded contiguous caches with a mask
logprob   log-probs of targets, forward and backward        peer: all logits, log_softmax, gather
gpu       packed and decode on a GPU, where there is one    peers: SDPA's flash backend, and flash-attn if installed

Where others use the machine too, --cpu-time with OMP_NUM_THREADS=1 counts only the time that this process had.
"""

import argparse
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from minvenus.kernels.attention import attention
from minvenus.kernels.logprob import token_logprobs, token_logprobs_reference
from minvenus.kernels.paged import paged_attention, paged_plan

HEADS = {"tiny": (4, 2, 32), "qwen3-0.6b": (16, 8, 128)}       # query heads, kv heads, head_dim


def seconds(functions, rounds, clock, device="cpu"):
    """name -> median seconds. One call of each in turn, `rounds` times, after one that warms up."""
    times = {name: [] for name in functions}
    for i in range(rounds + 1):
        for name, function in functions.items():
            start = clock()
            function()
            if device == "cuda":
                torch.cuda.synchronize()
            if i:
                times[name].append(clock() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def report(name, ratio, limit, detail, at_least=False):
    met = ratio >= limit if at_least else ratio <= limit
    target = f"target {'>=' if at_least else '<='} {limit:.3g}"
    print(f"{name:36} {ratio:6.2f}   {target:16} {'met' if met else 'NOT MET':8} {detail}", flush=True)


def both_ways(function, *leaves):
    """A training step's share: forward, then backward into fresh gradients."""
    return lambda: torch.autograd.grad(function().sum(), leaves)


def ragged_lengths(count, low, high):
    lengths = torch.randint(low, high + 1, (count,), generator=torch.Generator().manual_seed(0)).tolist()
    return [high, *lengths[1:]]                                 # the longest one sets the padding


# ------------------------------------------------------------------------------------------------------------ on a CPU


def bench_packed(rounds, quick, clock):
    lengths = ragged_lengths(8, 64, 512 if quick else 2048)
    heads, kv_heads, channels = 8, 4, 64
    cu, longest, n = torch.tensor([0, *lengths]).cumsum(0), max(lengths), sum(lengths)
    q, k, v = (torch.randn(n, h, channels, requires_grad=True) for h in (heads, kv_heads, kv_heads))
    padded = [torch.randn(len(lengths), h, longest, channels, requires_grad=True) for h in (heads, kv_heads, kv_heads)]
    position = torch.arange(longest)
    mask = (position <= position[:, None]) & (position < torch.tensor(lengths)[:, None, None, None])          # [B, 1, L, L]
    ours = both_ways(lambda: attention(q, k, v, cu), q, k, v)
    peer = both_ways(lambda: F.scaled_dot_product_attention(*padded, attn_mask=mask, enable_gqa=True), *padded)
    t = seconds({"ours": ours, "peer": peer}, rounds, clock)
    report(f"packed {min(lengths)}-{longest}, faster by", t["peer"] / t["ours"], 1.5,
           f"ours {t['ours'] * 1e3:.0f} ms, padded with a mask {t['peer'] * 1e3:.0f} ms", at_least=True)


def pool(lengths, kv_heads, channels, page, device="cpu", dtype=torch.float32):
    """Scattered pages for these lengths: k_pages, v_pages, block_table, lengths."""
    need = [-(-length // page) for length in lengths]
    order = iter(torch.randperm(sum(need), generator=torch.Generator().manual_seed(0)).tolist())
    table = torch.zeros(len(lengths), max(need), dtype=torch.int32)
    for s, count in enumerate(need):
        table[s, :count] = torch.tensor([next(order) for _ in range(count)])
    k_pages, v_pages = (torch.randn(sum(need), page, kv_heads, channels, device=device, dtype=dtype) for _ in range(2))
    return k_pages, v_pages, table.to(device), torch.tensor(lengths, dtype=torch.int32, device=device)


def bench_decode(rounds, quick, clock):
    for name, shape in HEADS.items():
        decode_of(name, *shape, ragged_lengths(32, 100, 500 if quick else 2000), rounds, clock)


def decode_of(name, heads, kv_heads, channels, lengths, rounds, clock, layers=4):
    pages = pool(lengths, kv_heads, channels, 16)
    q = torch.randn(len(lengths), heads, channels)
    caches = [torch.randn(len(lengths), kv_heads, max(lengths), channels) for _ in range(2)]
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])[:, None, None]                       # [B, 1, 1, L]
    plan = paged_plan(q.shape[1], pages[0], *pages[2:])
    functions = {"ours": lambda: paged_attention(q, *pages, plan=plan), "step": lambda: ours_layers(q, pages, layers),
                 "peer": lambda: F.scaled_dot_product_attention(q[:, :, None], *caches, attn_mask=mask, enable_gqa=True)}
    t = seconds(functions, rounds, clock)
    read = 8 * sum(lengths) * kv_heads * channels                                  # bytes of keys and values
    report(f"paged decode, {name}, time", t["ours"] / t["peer"], 1.3,
           f"ours {t['ours'] * 1e3:.2f} ms ({read / t['ours'] / 1e9:.1f} GB/s), padded caches {t['peer'] * 1e3:.2f} ms; "
           f"with one plan for {layers} layers {t['step'] / layers / t['peer']:.2f}")


def ours_layers(q, pages, layers):
    """A step of a model of some layers: one plan, then every layer."""
    plan = paged_plan(q.shape[1], pages[0], *pages[2:])
    for _ in range(layers):
        paged_attention(q, *pages, plan=plan)


def bench_logprob(rounds, quick, clock):
    n, vocabulary, channels = (512, 32_000, 128) if quick else (4096, 151_936, 256)
    hidden = torch.randn(n, channels, requires_grad=True)
    weight = (torch.randn(vocabulary, channels) * 0.05).requires_grad_()
    targets = torch.randint(0, vocabulary, (n,))
    functions = {"ours": both_ways(lambda: token_logprobs(hidden, weight, targets), hidden, weight),
                 "peer": both_ways(lambda: token_logprobs_reference(hidden, weight, targets), hidden, weight)}
    t = seconds(functions, min(rounds, 3), clock)
    size = f"log-probs {n} x {vocabulary}"
    report(f"{size}, time", t["ours"] / t["peer"], 1.2, f"ours {t['ours']:.2f} s, full logits {t['peer']:.2f} s")
    if not quick:
        ours, peer, large = (peak_bytes(name, tokens, vocabulary, channels) for name, tokens in (
            ("token_logprobs", n), ("token_logprobs_reference", n), ("token_logprobs", 16_384)))
        report(f"{size}, memory", ours / peer, 1 / 8, f"ours {ours / 1e6:.0f} MB, full logits {peer / 1e6:.0f} MB")
        report(f"log-probs 16384 x {vocabulary}, GB", large / 1e9, 1.5, "above the inputs, forward and backward")


def peak_bytes(function, n, vocabulary, channels):
    """Peak memory above the inputs of one forward and backward, in a process of its own (from /proc: Linux only)."""
    script = f"""
import torch
from minvenus.kernels.logprob import {function} as function
def peak(): return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
hidden = torch.randn({n}, {channels}).requires_grad_()
weight = (torch.randn({vocabulary}, {channels}) * 0.05).requires_grad_()
targets = torch.randint(0, {vocabulary}, ({n},))
function(hidden[:8], weight[:64], targets[:8] % 64).sum().backward()
hidden.grad = weight.grad = None
open("/proc/self/clear_refs", "w").write("5")
before = peak()
function(hidden, weight, targets).sum().backward()
print(peak() - before)
"""
    return int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)


# ------------------------------------------------------------------------------------------------------------ on a GPU


def bench_gpu(rounds, quick, clock):
    if not torch.cuda.is_available():
        print("gpu: skipped, there is none here (torch.cuda.is_available() is False)")
        return
    print(f"gpu: {torch.cuda.get_device_name()}, bfloat16")
    gpu_packed(rounds, 4, 1024 if quick else 8192, clock)
    gpu_decode(rounds, 16, 1024 if quick else 32_768, clock)


def gpu_packed(rounds, count, length, clock):
    """Equal lengths, the peers' best case; head shape of Qwen3-4B."""
    heads, kv_heads, channels = 32, 8, 128
    new = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
    q, k, v = (torch.randn(count * length, h, channels, **new) for h in (heads, kv_heads, kv_heads))
    batch = [x.detach().unflatten(0, (count, length)).transpose(1, 2).contiguous().requires_grad_() for x in (q, k, v)]
    cu = torch.arange(count + 1, device="cuda", dtype=torch.int32) * length

    def flash():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(*batch, is_causal=True, enable_gqa=True)

    functions = {"ours": both_ways(lambda: attention(q, k, v, cu, max_seqlen=length), q, k, v),
                 "SDPA flash": both_ways(flash, *batch)}
    try:
        from flash_attn import flash_attn_varlen_func
        functions["flash-attn"] = both_ways(lambda: flash_attn_varlen_func(q, k, v, cu, cu, length, length, causal=True), q, k, v)
    except ImportError:
        print("gpu: flash-attn is not installed")
    flops = 3.5 * 4 * count * heads * channels * length**2 / 2                     # backward: 2.5 times the forward
    times = seconds(functions, rounds, clock, "cuda")
    for name, t in times.items():
        speed = f"{t * 1e3:8.2f} ms {flops / t / 1e12:6.1f} TFLOP/s"
        print(f"gpu packed {count} x {length}, {name:12} {speed}   ours takes {times['ours'] / t:.2f} of it")


def gpu_decode(rounds, count, length, clock):
    heads, kv_heads, channels = 32, 8, 128
    pages = pool([length] * count, kv_heads, channels, 64, "cuda", torch.bfloat16)
    q = torch.randn(count, heads, channels, device="cuda", dtype=torch.bfloat16)
    caches = [torch.randn(count, kv_heads, length, channels, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    plan = paged_plan(q.shape[1], pages[0], *pages[2:])
    functions = {"ours": lambda: paged_attention(q, *pages, plan=plan),
                 "SDPA": lambda: F.scaled_dot_product_attention(q[:, :, None], *caches, enable_gqa=True)}
    times = seconds(functions, rounds, clock, "cuda")
    read = 4 * count * length * kv_heads * channels                                # bytes of keys and values
    for name, t in times.items():
        speed = f"{t * 1e3:8.3f} ms {read / t / 1e9:6.0f} GB/s"
        print(f"gpu decode {count} x {length}, {name:12} {speed}   ours takes {times['ours'] / t:.2f} of it")


SECTIONS = {"packed": bench_packed, "decode": bench_decode, "logprob": bench_logprob, "gpu": bench_gpu}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that all runs; targets are for the full ones")
    parser.add_argument("--rounds", type=int, default=15, help="calls of each; the median counts (log-probs: at most 3)")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--cpu-time", action="store_true", help="count processor time of this process, not time on the wall")
    options = parser.parse_args(arguments)
    unknown = set(options.only.split(",")) - set(SECTIONS)
    if unknown or options.rounds < 1:
        parser.error(f"--only takes {', '.join(SECTIONS)} and --rounds at least 1; got {options.only} and {options.rounds}")
    clock = time.process_time if options.cpu_time else time.perf_counter
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, medians of {options.rounds} interleaved rounds, "
          f"{clock.__name__}")
    for name in options.only.split(","):
        SECTIONS[name](options.rounds, options.quick, clock)


if __name__ == "__main__":
    main()
