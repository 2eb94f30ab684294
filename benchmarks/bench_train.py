"""SFT steps against transformers' Qwen3: the same weights, trajectories and optimiser in one process, in turns; and peak memory.

    python benchmarks/bench_train.py [--only speed memory] [--threads 1] [--rounds 5] [--batches 4] [--cpu-time]

The peer lives in a virtual environment of its own, which also runs our side, so that both use the same torch:

    python3 -m venv peer
    peer/bin/pip install torch==2.13.0 transformers==5.22.2 safetensors tokenizers numpy requests
    export MINVENUS_TRANSFORMERS_PYTHON=peer/bin/python

Without it our side is measured alone and no ratio is printed. Both train in float32 with as many threads on the toy web's
demonstrations, 16 a step: ours packed end to end, the peer's padded to the longest of the step. Padding does not count as tokens.
On a machine that others use as well, --cpu-time with one thread counts the time that the process really had.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from minvenus.config import ModelConfig  # noqa: E402
from minvenus.model import weights  # noqa: E402
from minvenus.model.qwen3 import Qwen3  # noqa: E402
from minvenus.sft.dataset import Example, load  # noqa: E402
from minvenus.text.tokenizer import Tokenizer  # noqa: E402
from minvenus.tools.toyweb import ToyWeb  # noqa: E402
from minvenus.tools.toyweb_lessons import Teacher, demonstrations  # noqa: E402
from minvenus.train.optim import adamw  # noqa: E402
from minvenus.train.update import sft_step  # noqa: E402

PEER = "MINVENUS_TRANSFORMERS_PYTHON"
BATCH, RATE, TARGET = 16, 1e-4, 1.5
VOCABULARY = 151_936


# ------------------------------------------------------------------------------------------------------------------------- speed


def batches_of(count: int) -> list[list[Example]]:
    """What train_sft.py trains on by default: questions of 1 to 4 hops, a teacher that errs."""
    web = ToyWeb(0, train=count * BATCH)
    teacher = Teacher(wrong_result=0.5, wrong_relation=0.3, at_once=0.04)
    records = [{"messages": messages} for messages in demonstrations(web, count * BATCH, teacher)]
    examples = load(records, Tokenizer.tiny(), max_tokens=4096)[0]
    return [examples[i:i + BATCH] for i in range(0, len(examples), BATCH)]


def padded(examples: list[Example]) -> dict[str, torch.Tensor]:
    """The peer's inputs, all [B, longest]; it shifts the labels itself and leaves -100 out."""
    rows = torch.nn.utils.rnn.pad_sequence([e.tokens.long() for e in examples], batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(e), dtype=torch.long) for e in examples], batch_first=True)
    trained = torch.nn.utils.rnn.pad_sequence([e.sampled for e in examples], batch_first=True)
    return {"input_ids": rows, "attention_mask": mask, "labels": rows.masked_fill(~trained, -100)}


def peer_step(model, optimizer, inputs) -> float:
    loss = model(**inputs, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def load_both():
    """Our model and the peer's (None without transformers), from one folder."""
    with tempfile.TemporaryDirectory() as folder:
        weights.save(Qwen3(ModelConfig.preset("tiny")), folder)
        ours = weights.load(folder)
        try:
            from transformers import AutoModelForCausalLM, logging
        except ImportError:
            return ours, None
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        return ours, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()


def speed(options) -> None:
    ours, peer = load_both()
    batches = batches_of(options.batches)
    inputs = [padded(batch) for batch in batches]
    tokens = sum(len(e) for batch in batches for e in batch)
    wide = sum(x["input_ids"].numel() for x in inputs)
    print(f"tiny preset, {options.batches} steps of {BATCH} trajectories: {tokens:,} tokens, {wide:,} with padding", flush=True)
    own, other = adamw(ours, (0.9, 0.95), 0.01), peer and adamw(peer, (0.9, 0.95), 0.01)
    for group in other.param_groups if peer else ():
        group["lr"] = RATE

    def run_ours():
        return [sft_step(ours, own, batch, RATE, 1.0, 8192, "token-mean")["loss"] for batch in batches]

    def run_peer():
        return [peer_step(peer, other, x) for x in inputs]

    first = run_ours()                                                     # also the warm-up
    if peer:
        gap = max(abs(a - b) for a, b in zip(first, run_peer(), strict=True))
        print(f"the losses of the first {options.batches} steps, {first[0]:.4f} to {first[-1]:.4f}, differ by {gap:.1e} at most: "
              "both sides do the same work", flush=True)
    times = [(seconds(options, run_ours), seconds(options, run_peer) if peer else None) for _ in range(options.rounds)]
    line = f"training  ours {tokens / statistics.median(a for a, _ in times):,.0f} tokens/s"
    if peer:
        ratios, theirs = [b / a for a, b in times], statistics.median(b for _, b in times)
        ratio = statistics.median(ratios)
        line += (f"   peer {tokens / theirs:,.0f} tokens/s   ratio {ratio:.2f}   target {TARGET}   "
                 f"{'ok' if ratio >= TARGET else 'MISSED'}   rounds {' '.join(f'{r:.2f}' for r in ratios)}")
    print(line, flush=True)


def seconds(options, work) -> float:
    start = options.clock()
    work()
    return options.clock() - start


# ------------------------------------------------------------------------------------------------------------------------ memory


def memory(options) -> None:
    """Peak memory of one step, each length in a process of its own; every token is trained."""
    peaks = {}
    for tokens in options.lengths:
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
        done = subprocess.run([sys.executable, __file__, "--step", str(tokens)], capture_output=True, text=True, env=environment)
        if done.returncode:
            sys.exit(done.stderr)
        before, peaks[tokens], took = (float(x) for x in done.stdout.split())
        print(f"memory    one step of {tokens:>6,} tokens, vocabulary {VOCABULARY:,}: peak {peaks[tokens] / 2**20:,.0f} MiB, "
              f"{(peaks[tokens] - before) / 2**20:,.0f} above the process with its model; all logits would be "
              f"{tokens * VOCABULARY * 4 / 2**20:,.0f} MiB   ({took:.0f} s)", flush=True)
    short, long = min(peaks), max(peaks)
    slope = (peaks[long] - peaks[short]) / (long - short)
    print(f"memory    grows by {slope / 2**10:,.1f} KiB a token; a term in tokens x vocabulary would be "
          f"{VOCABULARY * 4 / 2**10:,.1f} KiB a token: there is none   {'ok' if slope < VOCABULARY * 4 / 20 else 'MISSED'}")


def one_step(tokens: int) -> None:
    """In a process of its own: prints the memory before, the peak and the seconds."""
    shape = ModelConfig(64, 128, 1, 2, 1, head_dim=32, vocab_size=VOCABULARY, max_position_embeddings=tokens)
    model = Qwen3(shape)
    optimizer = adamw(model, (0.9, 0.95), 0.01)
    ids = torch.randint(0, VOCABULARY, (tokens,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    sampled = torch.ones(tokens, dtype=torch.bool)
    sampled[0] = False
    before, start = status("VmRSS"), time.perf_counter()
    sft_step(model, optimizer, [Example(ids, sampled, (tokens,))], RATE, 1.0, tokens, "trajectory-mean")
    print(before, status("VmHWM"), time.perf_counter() - start)


def status(key: str) -> int:
    """Bytes of this process, as Linux counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))


PARTS = {"speed": speed, "memory": memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 16_384], metavar="TOKENS")
    parser.add_argument("--cpu-time", dest="clock", action="store_const", const=time.process_time, default=time.perf_counter)
    parser.add_argument("--step", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        one_step(options.step)
        return
    peer = os.environ.pop(PEER, None)
    if peer:
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
        sys.exit(subprocess.run([peer, __file__, *sys.argv[1:]], env=environment).returncode)
    torch.set_num_threads(options.threads)
    try:
        import transformers
        peer = f"transformers {transformers.__version__}"
    except ImportError:
        peer = f"none: set {PEER}, see --help"
    print(f"torch {torch.__version__}, peer {peer}, {options.threads} threads, float32, "
          f"{'processor' if options.clock is time.process_time else 'wall'} time", flush=True)
    for name in options.only:
        PARTS[name](options)


if __name__ == "__main__":
    main()
