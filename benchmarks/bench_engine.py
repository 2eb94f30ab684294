"""The rollout engine against transformers' `generate`: one folder of weights, one process, interleaved rounds, median ratio.

    python benchmarks/bench_engine.py [--only agent decode score growth large] [--threads 1] [--rounds 3] [--cpu-time]

The peer lives in a virtual environment of its own, which also runs our side, so that both use the same torch:

    python3 -m venv peer && peer/bin/pip install torch==2.13.0 transformers==5.22.2 numpy==2.4.6
    export MINVENUS_TRANSFORMERS_PYTHON=peer/bin/python

Without it our side is measured alone and no ratio is printed. Both sides run in float32 with the same number of threads. On a
machine that others use as well, --cpu-time with one thread counts the time that the process really had. All parts take about
a quarter of an hour, most of it the large model; the last thing printed is one table of every target.
"""

import argparse
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from minvenus.config import ModelConfig  # noqa: E402
from minvenus.engine import Engine, Sampling  # noqa: E402

from minvenus.kernels.logprob import token_logprobs  # noqa: E402
from minvenus.model import weights  # noqa: E402
from minvenus.model.qwen3 import Qwen3  # noqa: E402

PEER = "MINVENUS_TRANSFORMERS_PYTHON"
QUESTIONS, ROLLOUTS, TURNS, PROMPT, TURN, OBSERVATION, ANSWER = 8, 8, 8, 120, 24, 100, 12
ROUND = 8.0        # seconds that a round should take


def random_tokens(vocabulary, *shape, seed=0):
    return torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def seconds(work, clock=time.perf_counter):
    start = clock()
    work()
    return clock() - start


def load_both(config, folder):
    """Our model and the peer's (None without transformers), both from the same folder."""
    weights.save(Qwen3(config), folder)
    ours = weights.load(folder).requires_grad_(False)
    try:
        from transformers import AutoModelForCausalLM, logging
    except ImportError:
        return ours, None
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    gc.freeze()                      # what was loaded is not searched for garbage: the pause would fall on either side by chance
    return ours, peer


@torch.inference_mode()
def peer_generate(peer, prompts, new):
    """prompts [B, L] -> [B, L + new]: sampled at temperature 1 from the whole vocabulary, as ours."""
    return peer.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                         max_new_tokens=new, min_new_tokens=new, pad_token_id=0, eos_token_id=None)


RESULTS: list[tuple[str, str, str, bool]] = []      # what was measured, the number, the target, whether it is met


def compare(name, tokens, ours, peer, options, target, warm_up=True):
    """Interleaved rounds after one warm-up each; the ratio is the median over rounds. A round runs both sides in turn for some
    seconds: a pause of the machine then does not decide."""
    sides = [side for side in (ours, peer) if side]
    repeats = max(1, round(ROUND / sum(seconds(side) for side in sides))) if warm_up else 1
    rounds = []
    for _ in range(options.rounds):
        times = [[seconds(side, options.clock) for side in sides] for _ in range(repeats)]
        rounds.append([sum(side) / repeats for side in zip(*times, strict=True)])
    mine, *theirs = (statistics.median(side) for side in zip(*rounds, strict=True))
    line = f"{name:<34} ours {tokens / mine:9.1f} tok/s"
    if theirs:
        ratios = [b / a for a, b in rounds]
        ratio = statistics.median(ratios)
        line += f"   peer {tokens / theirs[0]:9.1f} tok/s   ratio {ratio:5.2f}   {verdict(name, ratio, target)}"
        line += f"   rounds {' '.join(f'{r:.2f}' for r in ratios)}"
    print(line, flush=True)


def verdict(name, value, target, share=False):
    """Against a target: a ratio must reach it, a share must stay within it. Kept for the table at the end."""
    met = value <= target if share else value >= target
    number, wanted = (f"{100 * value:.1f} %", f"<= {100 * target:.0f} %") if share else (f"{value:.2f}x", f">= {target:.1f}x")
    RESULTS.append((name, number, wanted, met))
    return f"target {wanted} {'met' if met else 'MISSED'}"


def print_results(started):
    if RESULTS:
        print(f"\n{'':<56} {'measured':>10} {'target':>10}")
        for name, number, wanted, met in RESULTS:
            print(f"{name:<56} {number:>10} {wanted:>10}   {'met' if met else 'MISSED'}")
    minutes = (time.perf_counter() - started) / 60
    print(f"{sum(met for *_, met in RESULTS)} of {len(RESULTS)} targets met, in {minutes:.1f} minutes")


# ------------------------------------------------------------------------------------------------------ the agent's workload


def agent_rollouts(engine, prompts, observations):
    """Every turn: sample, append the observation. Returns the living sequences and the lengths at which each turn began."""
    engine.weights_changed()
    sequences = [s for group in engine.open_groups(prompts, ROLLOUTS) for s in group]
    boundaries = []
    for turn in range(TURNS):
        boundaries.append(len(sequences[0].tokens))
        engine.turn(sequences, Sampling(TURN))
        if turn + 1 < TURNS:
            for sequence, observation in zip(sequences, observations[turn], strict=True):
                engine.append(sequence, observation)
    return sequences, boundaries


def agent(options):
    config = ModelConfig.preset("tiny")
    with tempfile.TemporaryDirectory() as folder:
        ours, peer = load_both(config, folder)
    prompts = random_tokens(config.vocab_size, QUESTIONS, PROMPT)
    observations = random_tokens(config.vocab_size, TURNS - 1, QUESTIONS * ROLLOUTS, OBSERVATION, seed=1)
    page, longest = 16, PROMPT + TURNS * (TURN + OBSERVATION) - OBSERVATION
    engine = Engine(ours, pages=QUESTIONS * ROLLOUTS * (-(-longest // page) + 16), page_size=page, step_tokens=8192)
    prompt_lists, observation_lists = prompts.tolist(), observations.tolist()

    def run_ours():
        for sequence in agent_rollouts(engine, prompt_lists, observation_lists)[0]:
            engine.close(sequence)

    def run_peer():
        context = prompts.repeat_interleave(ROLLOUTS, dim=0)
        for turn in range(TURNS):
            context = peer_generate(peer, context, TURN)
            if turn + 1 < TURNS:
                context = torch.cat((context, observations[turn]), dim=1)

    tokens = QUESTIONS * ROLLOUTS * TURNS * TURN
    compare(f"agent {QUESTIONS}x{ROLLOUTS}, {TURNS} turns, tiny", tokens, run_ours, run_peer if peer else None, options, 4.0)
    engine.reset_counters()
    run_ours()
    shared = (PROMPT - 1) // page
    ideal = QUESTIONS * shared + QUESTIONS * ROLLOUTS * (-(-(longest - 1) // page) - shared)
    counters = engine.counters()
    print(f"  pages at the peak {counters.pages_peak}, ideal {ideal} ({counters.pages_peak / ideal:.3f}x); tokens prefilled "
          f"{counters.prefilled}, decoded {counters.decoded}, shared {counters.shared}; ms per phase "
          + ", ".join(f"{k} {1000 * v:.0f}" for k, v in counters.seconds.items()))
    scoring_share(engine, prompt_lists, observation_lists, options)


def scoring_share(engine, prompts, observations, options):
    """The share of scoring in a whole rollout phase: a gain for every visit (every second turn), as both recipes have it. And one
    for every turn (`--browse off`): a tenth as many tokens as the phase computes, whose products and attention alone take 5 %."""
    answer = random_tokens(512, ANSWER, seed=2).tolist()
    for name, pick in (("every second turn a visit", lambda b: [b[0], *b[2::2]]), ("every turn", lambda b: b)):
        shares = []
        for _ in range(3 * options.rounds):                          # a twentieth of the time: one pause moves it by a half
            start = options.clock()
            sequences, boundaries = agent_rollouts(engine, prompts, observations)
            before = options.clock()
            engine.score_many([(s, pick(boundaries), answer) for s in sequences])
            end = options.clock()
            shares.append((end - before) / (end - start))
            for sequence in sequences:
                engine.close(sequence)
        share = statistics.median(shares)
        result = verdict(f"scoring in a rollout phase, {name}", share, 0.05, share=True)
        print(f"  scoring a {ANSWER}-token answer at {len(pick(boundaries))} boundaries ({name}): {100 * share:.1f} % of the "
              f"rollout phase ({100 * min(shares):.1f} to {100 * max(shares):.1f})   {result}", flush=True)


# ------------------------------------------------------------------------------------------------------- plain batch decoding


def decode(options, preset="tiny", batches=(1, 8, 64), targets=(1.0, 1.0, 2.0)):
    config = ModelConfig.preset(preset)
    with tempfile.TemporaryDirectory() as folder:
        ours, peer = load_both(config, folder)
    for batch, target in zip(batches, targets, strict=True):
        prompts = random_tokens(config.vocab_size, batch, 256)
        lists, page = prompts.tolist(), 16
        engine = Engine(ours, pages=batch * (320 // page), page_size=page, step_tokens=batch * 256)       # all prompts at once

        def run_ours(new=64, engine=engine, lists=lists):
            engine.weights_changed()
            engine.generate(lists, Sampling(new))

        def run_peer(new=64, prompts=prompts):
            peer_generate(peer, prompts, new)

        compare(f"decode {preset}, batch {batch}, 256 + 64", batch * 64, run_ours, run_peer if peer else None, options, target,
                warm_up=preset == "tiny")                             # a run of the large one is long enough to warm up itself
        if peer and preset == "tiny":
            phases(run_ours, run_peer, options)
        if preset != "tiny" and batch == 1:
            bandwidth(ours, engine)


def phases(ours, peer, options):
    """The same again in two parts: up to the first token, and every further one."""
    first, further = [], []
    for _ in range(options.rounds):
        mine, theirs = ([seconds(lambda f=side, n=n: f(n), options.clock) for n in (1, 64)] for side in (ours, peer))
        first.append((mine[0], theirs[0]))
        further.append(((mine[1] - mine[0]) / 63, (theirs[1] - theirs[0]) / 63))
    for name, pairs in (("up to the first token", first), ("each further token of all", further)):
        a, b = (1000 * statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(theirs / mine for mine, theirs in pairs)
        print(f"  {name:<26} ours {a:7.2f} ms   peer {b:7.2f} ms   ratio {ratio:.2f}", flush=True)


def bandwidth(model, engine):
    """Weights read per decoded token against a plain copy of memory, which reads and writes; both count every byte that moves."""
    counters = engine.counters()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    per_token = (counters.seconds["decode"] + counters.seconds["finish"]) / counters.decoded
    source = torch.ones(2**28)
    target = torch.empty_like(source)
    copy = min(seconds(lambda: target.copy_(source)) for _ in range(5))
    print(f"  {size / 2**30:.2f} GiB of weights in {1000 * per_token:.0f} ms a token: {size / per_token / 1e9:.1f} GB/s; "
          f"a plain copy moves {2 * source.nbytes / copy / 1e9:.1f} GB/s", flush=True)


# ------------------------------------------------------------------------------------------------------------------- scoring


def score(options):
    """20 boundaries of a 2,000-token rollout: forks of a living sequence, one packed forward, a fresh forward for each."""
    model = Qwen3(ModelConfig.preset("tiny")).requires_grad_(False)
    tokens = random_tokens(model.config.vocab_size, 2000).tolist()
    answer = random_tokens(model.config.vocab_size, ANSWER, seed=2).tolist()
    lengths = [100 * (i + 1) for i in range(20)]
    engine = Engine(model, pages=400, page_size=16)
    sequence = engine.open(tokens)
    engine.prefill([sequence])
    targets = torch.tensor(answer)

    @torch.inference_mode()
    def fresh():
        result = []
        for n in lengths:
            flat = torch.tensor(tokens[:n] + answer[:-1])
            hidden = model.packed(flat, torch.tensor([0, len(flat)], dtype=torch.int32))[n - 1:]
            result.append(token_logprobs(hidden, model.head_weight, targets).tolist())
        return result

    forms = {"forks": lambda: engine.score_many([(sequence, lengths, answer)])[0],
             "fresh": fresh}
    results = {name: torch.tensor(form()) for name, form in forms.items()}
    times = [{name: seconds(form, options.clock) for name, form in forms.items()} for _ in range(options.rounds)]
    for name, target in (("forks", 10.0), ("packed", 1.0)):
        ratio = statistics.median(t["fresh"] / t[name] for t in times)
        mine, theirs = (1000 * statistics.median(t[form] for t in times) for form in (name, "fresh"))
        result = verdict(f"scoring 20 boundaries of 2,000 tokens, {name}", ratio, target)
        difference = (results[name] - results["fresh"]).abs().max()
        print(f"score 20 boundaries of 2,000, {name:<7} {mine:7.1f} ms, fresh forwards {theirs:7.1f} ms   ratio {ratio:5.1f}   "
              f"{result}   largest difference {difference:.1e}", flush=True)


def growth(options):
    """Time per decoded token against the context: only attention grows."""
    model = Qwen3(replace(ModelConfig.preset("tiny"), max_position_embeddings=40_960)).requires_grad_(False)
    engine = Engine(model, pages=34_000 // 64, page_size=64)
    print("context    ms per decoded token, batch 1")
    for context in (1024, 2048, 4096, 8192, 16_384, 32_768):
        engine.weights_changed()
        sequence = engine.open(random_tokens(model.config.vocab_size, context).tolist())
        engine.prefill([sequence])
        engine.turn([sequence], Sampling(8))
        times = [seconds(lambda s=sequence: engine.turn([s], Sampling(8)), options.clock) / 8 for _ in range(2 * options.rounds)]
        print(f"{context:>7}    {1000 * statistics.median(times):.2f}", flush=True)
        engine.close(sequence)


def large(options):
    decode(options, "qwen3-0.6b", (1, 8), (1.0, 1.0))


PARTS = {"agent": agent, "decode": decode, "score": score, "growth": growth, "large": large}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu-time", dest="clock", action="store_const", const=time.process_time, default=time.perf_counter)
    options = parser.parse_args()
    peer = os.environ.pop(PEER, None)
    if peer:
        sys.exit(subprocess.run([peer, __file__, *sys.argv[1:]]).returncode)
    torch.set_num_threads(options.threads)
    try:
        import transformers
        peer = f"peer transformers {transformers.__version__}"
    except ImportError:
        peer = f"transformers is not here, so ours is measured alone: set {PEER} (see --help)"
    print(f"torch {torch.__version__}, {options.threads} threads, float32, {options.clock.__name__}; {peer}", flush=True)
    started = time.perf_counter()
    for name in options.only:
        PARTS[name](options)
    print_results(started)


if __name__ == "__main__":
    main()
