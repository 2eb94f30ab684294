"""Training steps beside their peers, interleaved in one process; and peak memory.

    python benchmarks/bench_train.py [--only sft grpo igpo memory] [--threads 1] [--rounds 5] [--cpu-time]

    sft     steps on 16 demonstrations against transformers' Qwen3: ours packed, the peer's padded      target 1.5
    grpo    whole single-turn steps against trl's GRPOTrainer: 8 prompts x 4 rollouts, 120 + 200 tokens  target 3
    igpo    whole steps of train_igpo.py on the toy web: rollouts, scoring, update; no peer
    memory  one step of SFT at two lengths: no term in tokens x vocabulary

The peers live in a virtual environment of their own, which also runs our side, so that both use the same torch:

    python3 -m venv peer
    peer/bin/pip install torch==2.13.0 transformers==5.22.2 trl==1.16.0 safetensors tokenizers numpy requests
    export MINVENUS_TRANSFORMERS_PYTHON=peer/bin/python

Without them our side is measured alone. Both train the tiny model in float32 with as many threads. On a busy machine, --cpu-time
with one thread counts the time that the process really had.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import train_igpo  # noqa: E402
from minvenus.config import ModelConfig  # noqa: E402
from minvenus.engine import Engine, Sampling  # noqa: E402
from minvenus.files import read_jsonl  # noqa: E402
from minvenus.model import weights  # noqa: E402
from minvenus.model.qwen3 import Qwen3  # noqa: E402
from minvenus.settings import IGPOConfig  # noqa: E402
from minvenus.sft.dataset import Example, load  # noqa: E402
from minvenus.text.tokenizer import Tokenizer  # noqa: E402
from minvenus.tools.toyweb import ToyWeb  # noqa: E402
from minvenus.tools.toyweb_lessons import Teacher, demonstrations  # noqa: E402
from minvenus.train.optim import adamw  # noqa: E402
from minvenus.train.update import Row, igpo_update, sft_step  # noqa: E402

PEER = "MINVENUS_TRANSFORMERS_PYTHON"
RATE, VOCABULARY = 1e-4, 151_936
PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 8, 4, 120, 200


def seconds(options, work) -> float:
    start = options.clock()
    work()
    return options.clock() - start


def report(name: str, ours: list[float], theirs: list[float], target: float) -> None:
    """Medians of the rounds, and of the ratios of neighbouring rounds."""
    line = f"{name:<8}  ours {statistics.median(ours):.3f} s"
    if theirs:
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        ratio = statistics.median(ratios)
        verdict = "ok" if ratio >= target else "MISSED"
        rounds = " ".join(f"{r:.2f}" for r in ratios)
        line += f"   peer {statistics.median(theirs):.3f} s   ratio {ratio:.2f}   target {target}   {verdict}   rounds {rounds}"
    print(line, flush=True)


def peer_model(folder):
    """transformers' model of a folder, None where there is no transformers."""
    try:
        from transformers import AutoModelForCausalLM, logging
    except ImportError:
        return None
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()


# ---------------------------------------------------------------------------------------------------------------- SFT


def padded(examples: list[Example]) -> dict[str, torch.Tensor]:
    """The peer's inputs, all [B, longest]; it shifts the labels itself and leaves -100 out."""
    pad = torch.nn.utils.rnn.pad_sequence
    rows = pad([e.tokens.long() for e in examples], batch_first=True)
    mask = pad([torch.ones(len(e), dtype=torch.long) for e in examples], batch_first=True)
    trained = pad([e.sampled for e in examples], batch_first=True)
    return {"input_ids": rows, "attention_mask": mask, "labels": rows.masked_fill(~trained, -100)}


def sft(options, folder) -> None:
    taught = demonstrations(ToyWeb(0, train=64), 64, Teacher(wrong_result=0.5))
    records = [{"messages": messages} for messages in taught]
    examples = load(records, Tokenizer.tiny(), max_tokens=4096)[0]
    batches = [examples[i:i + 16] for i in range(0, len(examples), 16)]
    ours, peer = weights.load(folder), peer_model(folder)
    own, other = adamw(ours, (0.9, 0.95), 0.01), peer and adamw(peer, (0.9, 0.95), 0.01)
    inputs = [padded(batch) for batch in batches]

    def run_ours() -> list[float]:
        return [sft_step(ours, own, batch, RATE, 1.0, 8192, "token-mean")["loss"] for batch in batches]

    def run_peer() -> list[float]:
        losses = []
        for x in inputs:
            loss = peer(**x, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
            other.param_groups[0]["lr"] = RATE
            other.step()
            other.zero_grad(set_to_none=True)
            losses.append(loss.item())
        return losses

    first = run_ours()                                                     # also the warm-up
    if peer:
        gap = max(abs(a - b) for a, b in zip(first, run_peer(), strict=True))
        print(f"sft       losses of the first {len(first)} steps differ by {gap:.1e} at most", flush=True)
    times = [(seconds(options, run_ours), seconds(options, run_peer) if peer else 0.0) for _ in range(options.rounds)]
    report("sft", [a for a, _ in times], [b for _, b in times] if peer else [], 1.5)


# --------------------------------------------------------------------------------------------------------------- GRPO


def grpo(options, folder) -> None:
    """One step: sample, reward by a rule, normalise in the group, one update without a KL term."""
    model = weights.load(folder)
    optimizer, engine = adamw(model, (0.9, 0.999), 0.0), Engine(model, 1024, 16, vocab_limit=700)
    config = IGPOConfig(kl_coef=0.0, learning_rate=RATE, logprob_gap=1.0)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(300, 700, (PROMPTS, PROMPT_TOKENS), generator=generator).tolist()

    def step() -> None:
        rows = []
        groups = engine.generate(prompts, Sampling(NEW_TOKENS, 1.0), n=GROUP)
        for prompt, group in zip(prompts, groups, strict=True):
            rewards = torch.tensor([float(sum(token % 2 for token in done.tokens)) for done in group])
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
            for done, advantage in zip(group, advantages, strict=True):
                positions = torch.arange(len(prompt), len(prompt) + len(done.tokens))
                rows.append(Row(torch.tensor(prompt + done.tokens), positions - 1, torch.tensor(done.logprobs),
                                torch.full((len(positions),), float(advantage))))
        igpo_update(model, optimizer, rows, None, config, 1)
        engine.weights_changed()

    step()                                                                 # the warm-up
    ours: list[float] = []
    theirs = trl_steps(options, folder, lambda: ours.append(seconds(options, step)))
    if not theirs:
        ours = [seconds(options, step) for _ in range(options.rounds)]
    report("grpo", ours, theirs, 3.0)


def trl_steps(options, folder, between) -> list[float]:
    """Seconds of trl's steps, the first left out; `between` is called after each of the others. Empty without trl."""
    try:
        from datasets import Dataset
        from transformers import PreTrainedTokenizerFast, TrainerCallback
        from trl import GRPOConfig, GRPOTrainer
    except ImportError:
        return []
    times: list[float] = []

    class Timer(TrainerCallback):
        def on_step_begin(self, *_, **__):
            self.start = options.clock()

        def on_step_end(self, args, state, *_, **__):
            if state.global_step > 1:
                times.append(options.clock() - self.start)
                between()

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(Path(folder) / "tokenizer.json"), eos_token="<|im_end|>",
                                        pad_token="<|endoftext|>")
    words = [f" {name}" for name in ("Bob", "Ann", "the", "a", "of", "is", "and", "to")]
    data = Dataset.from_dict({"prompt": [word * PROMPT_TOKENS for word in words]})
    settings = GRPOConfig(output_dir=f"{folder}/trl", per_device_train_batch_size=PROMPTS * GROUP, num_generations=GROUP,
                          max_completion_length=NEW_TOKENS, max_steps=options.rounds + 1, learning_rate=RATE, beta=0.0,
                          generation_kwargs={"min_new_tokens": NEW_TOKENS}, use_cpu=True, bf16=False, report_to=[],
                          gradient_checkpointing=False, save_strategy="no", logging_strategy="no", disable_tqdm=True)
    trainer = GRPOTrainer(model=peer_model(folder), args=settings, train_dataset=data, processing_class=tokenizer,
                          reward_funcs=lambda completions, **_: [float(len(text) % 7) for text in completions],
                          callbacks=[Timer()])
    trainer.train()
    return times


# --------------------------------------------------------------------------------------------------------------- IGPO


def igpo(options, folder) -> None:
    """train_igpo.py as it is, from the tiny base; its own timing of every step but the first."""
    config = IGPOConfig(out=f"{folder}/igpo", steps=options.rounds + 1, evaluate_questions=1, evaluate_every=1000,
                        save_every=1000, device="cpu")
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        train_igpo.main(config)
    rows = read_jsonl(f"{folder}/igpo/timing.jsonl")[1:]
    parts = ", ".join(f"{phase} {statistics.median(row[f'{phase}_seconds'] for row in rows):.3f}"
                      for phase in ("rollout", "scoring", "update"))
    total = statistics.median(sum(row[f"{phase}_seconds"] for phase in ("rollout", "scoring", "update")) for row in rows)
    print(f"igpo      ours {total:.3f} s of wall time a step: {parts}", flush=True)


# ------------------------------------------------------------------------------------------------------------- memory


def memory(options, folder) -> None:
    """Peak memory of one step, each length in a process of its own; every token is trained."""
    peaks = {}
    for tokens in (4096, 16_384):
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
        done = subprocess.run([sys.executable, __file__, "--step", str(tokens)], capture_output=True, text=True, env=environment)
        if done.returncode:
            sys.exit(done.stderr)
        peaks[tokens] = float(done.stdout)
        print(f"memory    one step of {tokens:>6,} tokens, vocabulary {VOCABULARY:,}: peak {peaks[tokens] / 2**20:,.0f} MiB; "
              f"all logits would be {tokens * VOCABULARY * 4 / 2**20:,.0f} MiB", flush=True)
    slope = (peaks[16_384] - peaks[4096]) / (16_384 - 4096)
    verdict = "ok" if slope < VOCABULARY * 4 / 20 else "MISSED"
    print(f"memory    grows by {slope / 2**10:,.1f} KiB a token; tokens x vocabulary would be {VOCABULARY * 4 / 2**10:,.1f} "
          f"KiB   {verdict}")


def one_step(tokens: int) -> None:
    """In a process of its own: prints the peak, as Linux counts it."""
    model = Qwen3(ModelConfig(64, 128, 1, 2, 1, head_dim=32, vocab_size=VOCABULARY, max_position_embeddings=tokens))
    ids = torch.randint(0, VOCABULARY, (tokens,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    sampled = torch.ones(tokens, dtype=torch.bool)
    sampled[0] = False
    sft_step(model, adamw(model, (0.9, 0.95), 0.01), [Example(ids, sampled)], RATE, 1.0, tokens, "trajectory-mean")
    lines = Path("/proc/self/status").read_text().splitlines()
    print(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")))


PARTS = {"sft": sft, "grpo": grpo, "igpo": igpo, "memory": memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
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
    print(f"torch {torch.__version__}, {options.threads} threads, float32", flush=True)
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            weights.save(Qwen3(ModelConfig.preset("tiny")), folder, Tokenizer.tiny().files)
            PARTS[name](options, folder)


if __name__ == "__main__":
    main()
