"""Training steps beside trl's GRPOTrainer, and beside another checkout of this project.

    python -m benchmarks.bench_train [--only grpo products steps] [--against PATH] [--threads 1]

    grpo     a whole single-turn GRPO step: 8 prompts x 4 rollouts, 120 + 200 tokens
             trl               as fast as it gets here: float32 like our side, no activations
                               computed again                                          target 1.8
             trl as it comes   its own defaults: bfloat16 products, activations computed again
                                                                                       target 2.3
    products the update of such a step, its matrix products by oneDNN (kernels/linear.py) and by
             torch's own choice; on AMD processors with AVX-512                        target 1.2
    steps    a step of train_sft.py and of train_igpo.py on the toy web with default settings,
             beside the same in the checkout at --against PATH                          target 0.95
             Rollouts differ where the base model or the web differs: then read the second row, by
             the tokens of a step.

All sides train the tiny model with as many threads; timing.py says where trl comes from.
"""

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch

from benchmarks.timing import Timing, check_tokens, main
from minvenus.config import ModelConfig
from minvenus.engine import Engine, Sampling
from minvenus.igpo.loss import LossConfig
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.sft.dataset import Example
from minvenus.train.optim import adamw
from minvenus.train.settings import IGPOConfig
from minvenus.train.update import Row, train_on

RATE = 1e-4
PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 8, 4, 120, 200
STEP_TOKENS = PROMPTS * GROUP * (PROMPT_TOKENS + NEW_TOKENS)
TRL = {"trl": ({"bf16": False, "gradient_checkpointing": False}, 1.8), "trl as it comes": ({}, 2.3)}


# ------------------------------------------------------------------------- beside another checkout


def steps(timing: Timing) -> None:
    if not timing.against:
        print("steps: needs --against PATH, another checkout")
        return
    checkouts = {"ours": Path.cwd(), "other": Path(timing.against).resolve()}
    for script, count in (("train_sft.py", 12), ("train_igpo.py", 4)):
        seconds: dict[str, list[float]] = {side: [] for side in checkouts}
        per_token: dict[str, list[float]] = {side: [] for side in checkouts}
        for _ in range(timing.rounds):
            for side, checkout in checkouts.items():
                lines = run_steps(checkout, script, count, timing.threads)
                seconds[side].append(median(line["seconds"] for line in lines))
                speeds = [line["tokens_per_second"] for line in lines]
                per_token[side].append(1 / median(speeds))
        timing.report(f"a step of {script}", seconds, {"other": 0.95})
        timing.report("  by its tokens", per_token, tokens=1)


def run_steps(checkout: Path, script: str, count: int, threads: int) -> list[dict]:
    """timing.jsonl of a short run with default settings, the first step left out."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, script, "--steps", str(count), "--out", f"{folder}/run"]
        env = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(checkout)}
        done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        lines = Path(folder, "run", "timing.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


# ------------------------------------------------------------------------------------- beside trl


def grpo(timing: Timing) -> None:
    """One step: sample, reward by a rule, normalise in the group, one update without a KL term.

    The two sides take turns, step by step; the first step of each is the warm-up.
    """
    name = "grpo step, 8 x 4 rollouts"
    prompts = random_prompts()
    with tempfile.TemporaryDirectory() as folder:
        weights.save(Qwen3(ModelConfig.preset("tiny")), folder)
        step = our_step(weights.load(folder), prompts)
        step()
        if not find_spec("trl"):
            timing.report(name, {"ours": [timing.seconds(step) for _ in range(timing.rounds)]})
            return
        for side, (settings, target) in TRL.items():
            ours: list[float] = []

            def run_ours(ours=ours):
                ours.append(timing.seconds(step))

            theirs = trl_steps(timing, folder, prompts, run_ours, settings)
            timing.report(name, {"ours": ours, side: theirs}, {side: target})


def random_prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(300, 700, (PROMPTS, PROMPT_TOKENS), generator=generator).tolist()


def our_step(model: Qwen3, prompts: list[list[int]]):
    optimizer, engine = adamw(model, (0.9, 0.999), 0.0), Engine(model, 1024, 16)
    config = IGPOConfig(loss=LossConfig(kl_coef=0.0), learning_rate=RATE)

    def step():
        rows = rollout_rows(engine, prompts)
        numbers = train_on(rows, model, optimizer, config, step=1)
        check_tokens("our update", numbers["tokens"], STEP_TOKENS)
        engine.load_weights(model)

    return step


def rollout_rows(engine: Engine, prompts: list[list[int]]) -> list[Row]:
    """Rollouts with advantages from rewards that are never equal in a group: rows without a signal
    would not run."""
    sampled = torch.arange(PROMPT_TOKENS + NEW_TOKENS) >= PROMPT_TOKENS
    rows = []
    groups = engine.generate(prompts, Sampling(NEW_TOKENS), n=GROUP)
    for prompt, group in zip(prompts, groups, strict=True):
        rewards = torch.tensor([float(sum(completion.tokens)) for completion in group])
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        for completion, advantage in zip(group, advantages, strict=True):
            tokens = torch.tensor(prompt + completion.tokens, dtype=torch.int32)
            logprobs = torch.tensor(completion.logprobs)
            rows.append(Row(Example(tokens, sampled), logprobs, advantage.repeat(NEW_TOKENS)))
    return rows


def products(timing: Timing) -> None:
    model = Qwen3(ModelConfig.preset("tiny"))
    rows = rollout_rows(Engine(model, 1024, 16), random_prompts())
    optimizer = adamw(model, (0.9, 0.999), 0.0)
    # a rate of almost 0: every round does the same work
    config = IGPOConfig(loss=LossConfig(kl_coef=0.0), learning_rate=1e-9)

    def update():
        train_on(rows, model, optimizer, config, step=1)

    def update_without_onednn():
        with torch.backends.mkldnn.flags(enabled=False):
            update()

    sides = {"ours": update, "F.linear": update_without_onednn}
    timing.compare("update, products", sides, {"F.linear": 1.2}, STEP_TOKENS)


def trl_steps(timing: Timing, folder: str, prompts: list[list[int]], between, changes: dict):
    """Seconds of trl's steps on the same prompts, the first left out.

    `between` is called after each of the others; `changes` are settings of trl.
    """
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback, logging
    from trl import GRPOConfig, GRPOTrainer

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    times: list[float] = []

    class Timer(TrainerCallback):
        def on_step_begin(self, *_, **__):
            self.start = timing.clock()

        def on_step_end(self, args, state, *_, **__):
            if state.global_step > 1:
                times.append(timing.clock() - self.start)
                between()

    settings = GRPOConfig(
        output_dir=f"{folder}/trl",
        per_device_train_batch_size=PROMPTS * GROUP,
        num_generations=GROUP,
        max_completion_length=NEW_TOKENS,
        max_steps=timing.rounds + 1,
        generation_kwargs={"min_new_tokens": NEW_TOKENS},
        learning_rate=RATE,
        beta=0.0,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **changes,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": [" ".join(map(str, p)) for p in prompts]}),
        processing_class=number_tokenizer(),
        reward_funcs=lambda completions, **_: [float(len(text) % 7) for text in completions],
        callbacks=[Timer()],
    )
    tokens = trainer.train().metrics["num_tokens"] / (timing.rounds + 1)
    check_tokens("trl", tokens, STEP_TOKENS)
    return times


def number_tokenizer():
    """The word "7" is the token 7."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"pad": 0, "end": 1} | {str(i): i for i in range(2, 768)}
    words = Tokenizer(WordLevel(vocabulary, unk_token="pad"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="end", pad_token="pad")


if __name__ == "__main__":
    main(__doc__, {"grpo": grpo, "products": products, "steps": steps})
