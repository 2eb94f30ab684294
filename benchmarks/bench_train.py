"""Training steps beside their peers, interleaved in one process.

    python benchmarks/bench_train.py [--only sft grpo igpo] [--threads 1] [--rounds 3] [--cpu-time]

    sft     steps on 16 demonstrations beside transformers' Qwen3: ours packed, the peer's padded       target 1.5
    grpo    whole single-turn steps beside trl's GRPOTrainer: 8 prompts x 4 rollouts, 120 + 200 tokens  target 3
    igpo    whole steps of train_igpo.py on the toy web: rollouts, scoring, update; no peer

Both sides train the tiny model in float32 with as many threads and AdamW steps. `make bench` installs the peers in an
environment of their own, which then runs our side too. Without them our side is measured alone:

    MINVENUS_TRANSFORMERS_PYTHON   python of the environment with transformers and trl
"""

import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import train_igpo
from benchmarks.timing import Timing, parser
from minvenus.config import ModelConfig
from minvenus.engine import Engine, Sampling
from minvenus.files import read_jsonl
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.settings import IGPOConfig
from minvenus.sft.dataset import load
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_lessons import Teacher, demonstrations
from minvenus.train.optim import adamw, optimizer_step
from minvenus.train.update import Row, igpo_update, sft_step

RATE = 1e-4
PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 8, 4, 120, 200


def peer_model(folder):
    from transformers import AutoModelForCausalLM, logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()


def padded(examples) -> dict[str, torch.Tensor]:
    """The peer's inputs, all [B, longest]; it shifts the labels itself and leaves -100 out."""
    pad = torch.nn.utils.rnn.pad_sequence
    tokens = pad([e.tokens.long() for e in examples], batch_first=True)
    mask = pad([torch.ones(len(e), dtype=torch.long) for e in examples], batch_first=True)
    trained = pad([e.sampled for e in examples], batch_first=True)
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(~trained, -100)}


def sft(timing, folder) -> None:
    taught = demonstrations(ToyWeb(0, train=64), 64, Teacher(wrong_result=0.5))
    examples = load([{"messages": messages} for messages in taught], Tokenizer.tiny(), max_tokens=4096)[0]
    batches = [examples[i:i + 16] for i in range(0, len(examples), 16)]
    ours = weights.load(folder)
    own = adamw(ours, (0.9, 0.95), 0.01)

    def run_ours():
        return [sft_step(ours, own, batch, RATE, 1.0, 8192, "token-mean")["loss"] for batch in batches]

    sides = {"ours": run_ours}
    if find_spec("transformers"):
        peer, inputs = peer_model(folder), [padded(batch) for batch in batches]
        other = adamw(peer, (0.9, 0.95), 0.01)

        def run_peer():
            losses = []
            for batch in inputs:
                loss = peer(**batch, use_cache=False).loss
                loss.backward()
                optimizer_step(peer, other, RATE, 1.0)
                losses.append(loss.item())
            return losses

        gap = max(abs(a - b) for a, b in zip(run_ours(), run_peer(), strict=True))
        print(f"sft: losses of the first {len(batches)} steps differ by {gap:.1e} at most")
        sides["transformers"] = run_peer
    timing.compare("sft", sides, {"transformers": 1.5})


def grpo(timing, folder) -> None:
    """One step: sample, reward by a rule, normalise in the group, one update without a KL term."""
    model = weights.load(folder)
    optimizer, engine = adamw(model, (0.9, 0.999), 0.0), Engine(model, 1024, 16)
    config = IGPOConfig(kl_coef=0.0, learning_rate=RATE)
    prompts = torch.randint(300, 700, (PROMPTS, PROMPT_TOKENS), generator=torch.Generator().manual_seed(0)).tolist()

    def step():
        rows = []
        for prompt, group in zip(prompts, engine.generate(prompts, Sampling(NEW_TOKENS, 1.0), n=GROUP), strict=True):
            rewards = torch.tensor([float(sum(done.tokens) % 7) for done in group])
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
            for done, advantage in zip(group, advantages, strict=True):
                sources = torch.arange(PROMPT_TOKENS - 1, PROMPT_TOKENS + NEW_TOKENS - 1)
                rows.append(Row(torch.tensor(prompt + done.tokens), sources, torch.tensor(done.logprobs),
                                advantage.repeat(NEW_TOKENS)))
        igpo_update(model, optimizer, rows, None, config, 1)
        engine.weights_changed()

    step()                                                                 # the warm-up
    ours: list[float] = []
    if find_spec("trl"):
        theirs = trl_steps(timing, folder, prompts, lambda: ours.append(timing.seconds(step)))
        ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
        print(f"grpo: trl {statistics.median(theirs):.3f} s {timing.against('grpo, trl', ratio, 3.0)}")
    else:
        ours += [timing.seconds(step) for _ in range(timing.rounds)]
    print(f"grpo: ours {statistics.median(ours):.3f} s", flush=True)


def trl_steps(timing, folder, prompts, between) -> list[float]:
    """Seconds of trl's steps on the same prompts, the first left out; `between` is called after each of the others."""
    from datasets import Dataset
    from tokenizers import Tokenizer as Words
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    times: list[float] = []

    class Timer(TrainerCallback):
        def on_step_begin(self, *_, **__):
            self.start = timing.clock()

        def on_step_end(self, args, state, *_, **__):
            if state.global_step > 1:
                times.append(timing.clock() - self.start)
                between()

    words = Words(WordLevel({"pad": 0, "end": 1} | {str(i): i for i in range(2, 768)}, unk_token="pad"))
    words.pre_tokenizer = WhitespaceSplit()                                # the word "7" is the token 7
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="end", pad_token="pad")
    data = Dataset.from_dict({"prompt": [" ".join(map(str, prompt)) for prompt in prompts]})
    settings = GRPOConfig(output_dir=f"{folder}/trl", per_device_train_batch_size=PROMPTS * GROUP,
                          num_generations=GROUP, max_completion_length=NEW_TOKENS, max_steps=timing.rounds + 1,
                          generation_kwargs={"min_new_tokens": NEW_TOKENS}, learning_rate=RATE, beta=0.0, use_cpu=True,
                          bf16=False, gradient_checkpointing=False, report_to=[], save_strategy="no",
                          logging_strategy="no", disable_tqdm=True)
    trainer = GRPOTrainer(model=peer_model(folder), args=settings, train_dataset=data, processing_class=tokenizer,
                          reward_funcs=lambda completions, **_: [float(len(text) % 7) for text in completions],
                          callbacks=[Timer()])
    tokens = trainer.train().metrics["num_tokens"] / (timing.rounds + 1)
    assert tokens == PROMPTS * GROUP * (PROMPT_TOKENS + NEW_TOKENS), f"trl trained on {tokens} tokens a step"
    return times


def igpo(timing, folder) -> None:
    """train_igpo.py as it is, from the tiny base; its own timing of every step but the first."""
    config = IGPOConfig(out=f"{folder}/igpo", steps=timing.rounds + 1, evaluate_questions=1, evaluate_every=1000,
                        save_every=1000, device="cpu")
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        train_igpo.main(config)
    rows = read_jsonl(f"{folder}/igpo/timing.jsonl")[1:]
    for phase in ("rollout", "scoring", "update"):
        print(f"igpo: {phase} {statistics.median(row[f'{phase}_seconds'] for row in rows):.3f} s of wall time a step")


PARTS = {"sft": sft, "grpo": grpo, "igpo": igpo}


def main():
    options = parser(__doc__, PARTS).parse_args()
    peer = os.environ.pop("MINVENUS_TRANSFORMERS_PYTHON", None)
    if peer:
        sys.exit(subprocess.run([peer, __file__, *sys.argv[1:]]).returncode)
    timing = Timing(options)
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            weights.save(Qwen3(ModelConfig.preset("tiny")), folder, Tokenizer.tiny().files)
            PARTS[name](timing, folder)
    timing.summary()


if __name__ == "__main__":
    main()
