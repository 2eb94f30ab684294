"""Whole single-turn GRPO steps beside trl's GRPOTrainer: 8 prompts x 4 rollouts, 120 + 200 tokens. Target 3.

    python -m benchmarks.bench_train [--threads 1] [--rounds 3] [--cpu-time]

All sides train the tiny model with as many threads and AdamW steps; timing.py says where trl comes from. It runs twice:

    trl              as fast as it gets here: float32 like our side, no activations computed again
    trl as it comes  its own defaults: bfloat16 products, activations computed again
"""

import tempfile
from importlib.util import find_spec

import torch

from benchmarks.timing import Timing, main
from minvenus.config import ModelConfig
from minvenus.engine import Engine, Sampling
from minvenus.igpo.loss import LossConfig
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.settings import IGPOConfig
from minvenus.sft.dataset import Example
from minvenus.train.optim import adamw
from minvenus.train.update import Row, train_on

RATE = 1e-4
PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 8, 4, 120, 200


def grpo(timing: Timing) -> None:
    """One step: sample, reward by a rule, normalise in the group, one update without a KL term. The two sides take
    turns, step by step; the first step of each is the warm-up."""
    prompts = torch.randint(
        300, 700, (PROMPTS, PROMPT_TOKENS), generator=torch.Generator().manual_seed(0)
    ).tolist()
    with tempfile.TemporaryDirectory() as folder:
        weights.save(Qwen3(ModelConfig.preset("tiny")), folder)
        step = our_step(weights.load(folder), prompts)
        step()
        if not find_spec("trl"):
            alone = [timing.seconds(step) for _ in range(timing.rounds)]
            timing.report("grpo step, 8 x 4 rollouts", {"ours": alone}, {})
            return
        settings: dict[str, dict] = {
            "trl": {"bf16": False, "gradient_checkpointing": False},
            "trl as it comes": {},
        }
        for name, own in settings.items():
            ours: list[float] = []
            theirs = trl_steps(
                timing, folder, prompts, lambda ours=ours: ours.append(timing.seconds(step)), own
            )
            timing.report("grpo step, 8 x 4 rollouts", {"ours": ours, name: theirs}, {name: 3.0})


def our_step(model: Qwen3, prompts: list[list[int]]):
    optimizer, engine = adamw(model, (0.9, 0.999), 0.0), Engine(model, 1024, 16)
    config = IGPOConfig(loss=LossConfig(kl_coef=0.0), learning_rate=RATE)
    sampled = torch.arange(PROMPT_TOKENS + NEW_TOKENS) >= PROMPT_TOKENS

    def step():
        rows = []
        for prompt, group in zip(
            prompts, engine.generate(prompts, Sampling(NEW_TOKENS, 1.0), n=GROUP), strict=True
        ):
            rewards = torch.tensor([float(sum(done.tokens) % 7) for done in group])
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
            for done, advantage in zip(group, advantages, strict=True):
                example = Example(torch.tensor(prompt + done.tokens), sampled)
                old_logprobs = torch.tensor(done.logprobs)
                rows.append(Row(example, old_logprobs, advantage.repeat(NEW_TOKENS)))
        train_on(rows, model, optimizer, config, 1)
        engine.load_weights(model)

    return step


def trl_steps(
    timing: Timing, folder: str, prompts: list[list[int]], between, own: dict
) -> list[float]:
    """Seconds of trl's steps on the same prompts, the first left out; `between` is called after each of the others.
    `own` are settings of trl."""
    from datasets import Dataset
    from tokenizers import Tokenizer as Words
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback, logging
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

    words = Words(
        WordLevel({"pad": 0, "end": 1} | {str(i): i for i in range(2, 768)}, unk_token="pad")
    )
    words.pre_tokenizer = WhitespaceSplit()  # the word "7" is the token 7
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="end", pad_token="pad")
    data = Dataset.from_dict({"prompt": [" ".join(map(str, prompt)) for prompt in prompts]})
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
        **own,
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model,
        args=settings,
        train_dataset=data,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [float(len(text) % 7) for text in completions],
        callbacks=[Timer()],
    )
    tokens = trainer.train().metrics["num_tokens"] / (timing.rounds + 1)
    assert tokens == PROMPTS * GROUP * (PROMPT_TOKENS + NEW_TOKENS), (
        f"trl trained on {tokens} tokens a step"
    )
    return times


if __name__ == "__main__":
    main(__doc__, {"grpo": grpo})
