"""SmolLM2-135M, the shape of `make real`, beside transformers: a folder of random weights, float32,
as many threads.

    MINVENUS_TRANSFORMERS_PYTHON=.venv-peer/bin/python .venv/bin/python -m benchmarks.bench_real \\
        --threads 2 [--only agent decode update] [--rounds 3]

    agent    4 x 4 rollouts of 6 turns, as the Factbook's are                             target 1.5
             the peer computes the whole context again in every turn
    decode   at batch 1 and 16                                                            target 1
    update   16 rollouts of 800 tokens, 220 of them sampled: forward, backward, AdamW     target 1
             the peer runs as many rollouts in one forward pass as a pack of ours holds
"""

import tempfile
from pathlib import Path

import torch

from benchmarks.bench_engine import decode as decode_shape
from benchmarks.bench_engine import load_transformers, random_tokens
from benchmarks.timing import Timing, check_tokens, main
from minvenus.config import ModelConfig
from minvenus.engine import Engine, Sampling
from minvenus.igpo.loss import LossConfig
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.sft.dataset import Example
from minvenus.train.optim import adamw
from minvenus.train.presets import IGPO_PRESETS
from minvenus.train.settings import IGPOConfig
from minvenus.train.update import Row, train_on

SHAPE = "smollm2-135m"
QUESTIONS, ROLLOUTS, TURNS = 4, 4, 6
PROMPT, TURN, OBSERVATION = 140, 35, 90  # tokens
CONTEXT, SAMPLED = 800, 220
RATE = 1e-9  # the weights stay as they are, so every round does the same work


def saved_model(folder: str) -> Qwen3:
    weights.save(Qwen3(ModelConfig.preset(SHAPE)), Path(folder))
    return weights.load(Path(folder))


def agent(timing: Timing) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = saved_model(folder).requires_grad_(False)
        generate = load_transformers(folder)
    engine = Engine(model, pages=2048, page_size=16)
    prompts = random_tokens(QUESTIONS, PROMPT)
    observations = random_tokens(TURNS, QUESTIONS * ROLLOUTS, OBSERVATION, seed=1)

    def run_ours():
        engine.load_weights(model)  # nothing is cached from the round before
        sequences = []
        for question, prompt in enumerate(prompts.tolist()):
            sequences += engine.open_group([list(prompt) for _ in range(ROLLOUTS)], question)
        for turn in range(TURNS):
            engine.turn(sequences, Sampling(TURN))
            for sequence, observation in zip(sequences, observations[turn].tolist(), strict=True):
                sequence.tokens += observation
        for sequence in sequences:
            check_tokens("a rollout", len(sequence.tokens), PROMPT + TURNS * (TURN + OBSERVATION))
            engine.close(sequence)

    def run_transformers():
        context = prompts.repeat_interleave(ROLLOUTS, dim=0)
        for turn in range(TURNS):
            context = torch.cat((generate(context, TURN), observations[turn]), dim=1)

    sides = {"ours": run_ours}
    if generate:
        sides["transformers"] = run_transformers
    tokens = QUESTIONS * ROLLOUTS * TURNS * TURN
    timing.compare("agent, 4 x 4 rollouts of 6 turns", sides, {"transformers": 1.5}, tokens)


def decode(timing: Timing) -> None:
    decode_shape(timing, SHAPE, (1, 16), (1.0, 0.95))


def update(timing: Timing) -> None:
    changes = {"model": SHAPE, "plan": True, "learning_rate": RATE, "loss": LossConfig(kl_coef=0.0)}
    config = IGPOConfig(preset="smollm2", **IGPO_PRESETS["smollm2"] | changes)
    with tempfile.TemporaryDirectory() as folder:
        model = saved_model(folder)
        rows = sampled_rows(model, config.questions * config.group)
        per_pass = config.pack_tokens // CONTEXT
        sides = {"ours": our_update(model, rows, config)}
        theirs = transformers_update(folder, rows, per_pass)
        if theirs:
            sides["transformers"] = theirs
        tokens = len(rows) * CONTEXT
        name = f"update, {len(rows)} x {CONTEXT} tokens"
        timing.compare(name, sides, {"transformers": 1.0}, tokens)


def sampled_rows(model: Qwen3, count: int) -> list[Row]:
    """Rollouts of this model with its own log-probs, as the check of their gap wants them."""
    engine = Engine(model, pages=count * (CONTEXT // 16 + 2), page_size=16)
    prompts = random_tokens(count, CONTEXT - SAMPLED).tolist()
    sampled = torch.arange(CONTEXT) >= CONTEXT - SAMPLED
    rows = []
    for i, completion in enumerate(engine.generate(prompts, Sampling(SAMPLED))):
        tokens = torch.tensor(prompts[i] + completion[0].tokens, dtype=torch.int32)
        advantages = torch.full((SAMPLED,), 1.0 if i % 2 else -1.0)
        logprobs = torch.tensor(completion[0].logprobs)
        rows.append(Row(Example(tokens, sampled), logprobs, advantages))
    engine.free_pages()
    return rows


def our_update(model: Qwen3, rows: list[Row], config: IGPOConfig):
    optimizer = adamw(model, (0.9, 0.999), 0.0)

    def step():
        numbers = train_on(rows, model, optimizer, config, step=1)
        check_tokens("our update", numbers["tokens"], config.epochs * len(rows) * CONTEXT)

    return step


def transformers_update(folder: str, rows: list[Row], per_pass: int):
    """The same loss without its statistics, in a plain loop; None without transformers."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        return None
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    tokens = torch.stack([row.example.tokens.long() for row in rows])
    advantages = torch.stack([row.advantages for row in rows])

    def step():
        for part, advantage in zip(tokens.split(per_pass), advantages.split(per_pass), strict=True):
            logits = model(part, logits_to_keep=SAMPLED + 1).logits[:, :-1]
            logprobs = torch.log_softmax(logits, -1)
            chosen = logprobs.gather(-1, part[:, -SAMPLED:, None]).squeeze(-1)
            loss = -(chosen * advantage).mean() * len(part) / len(tokens)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    main(__doc__, {part.__name__: part for part in (agent, decode, update)})
