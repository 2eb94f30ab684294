"""What each script calls, in order, with which arguments: a recorded run against a written list.

The parts are tested elsewhere; here it is what passes between them. All settings differ from their
defaults, so a default in a setting's place shows. `weights 3` are those of the policy after three
optimiser steps, `weights 0` those of the start checkpoint.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
import torch

import eval as evaluation
import infer
import minvenus.engine.engine as engines
import train_igpo
import train_sft
from minvenus.agent.rollout import RolloutLoop
from minvenus.engine import Engine
from minvenus.evaluation import questions as question_files
from minvenus.evaluation.judge import WordGrader
from minvenus.evaluation.results import ResultsFile
from minvenus.igpo.credit import assign_credit
from minvenus.model import weights
from minvenus.model.lora import adapters, plain_weight
from minvenus.settings import AgentConfig, EvalConfig, InferConfig
from minvenus.sft.dataset import load, read_records
from minvenus.tools import toyweb
from minvenus.train import checkpoint, update
from minvenus.train.batch import example_digest as digest
from minvenus.train.run import Run
from tests.agent.scripted import TOKENIZER, engine_for
from tests.train.igpo_runs import script_of, small_igpo, turns_of, web_of, write_model
from tests.train.runs import TINY, small_config, write_inputs


class Record:
    """The lines of a run. `watch` adds one for each call of a function, which is called as ever."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.patch = patch
        self.calls: list[str] = []
        self.streams: list[str] = []       # names of random numbers: seed/step/question/rollout
        self.policy = None
        self.weights: list[torch.Tensor] = []          # of the policy after 0, 1, ... steps

    def watch(self, owner, name: str, line: Callable, after: bool = False) -> None:
        """`line` gets the arguments; with `after` also the result, first."""
        real = getattr(owner, name)

        def watched(*args, **kwargs):
            if not after:
                self.calls.append(line(*args, **kwargs))
            result = real(*args, **kwargs)
            if after:
                self.calls.append(line(result, *args, **kwargs))
            return result

        self.patch.setattr(owner, name, watched)

    def lines(self) -> list[str]:
        """Equal lines in a row are one, with their number."""
        lines = []
        for line, same in groupby(self.calls):
            count = len([*same])
            lines.append(line if count == 1 else f"{line} ({count}x)")
        return lines

    # ----------------------------------------------------------------------------------- weights

    def set_policy(self, model) -> None:
        self.policy = model
        self.weights = [flat(model)]

    def stepped(self) -> None:
        self.weights.append(flat(self.policy))

    def version(self, model) -> str:
        """Which weights the model has now; with adapters switched off those of the start."""
        if not all(adapter.active for adapter in adapters(model).values()):
            return "weights 0"
        same = [torch.equal(flat(model), weights) for weights in self.weights]
        return f"weights {same.index(True)}"

    # ------------------------------------------------------------------------ rollouts and scores

    def watch_rollouts(self, script) -> None:
        """What an engine is asked. It draws what the script says."""
        draw, noise, init = engine_for(script).sampler.tokens, engines.Noise, Engine.__init__

        def engine(self, *args, **kwargs):
            init(self, *args, **kwargs)
            self.sampler.tokens = draw

        def stream(*name):
            if name[1]:                              # scorings draw nothing
                self.streams.append("/".join(map(str, name)))
            return noise(*name)

        self.patch.setattr(Engine, "__init__", engine)
        self.patch.setattr(engines, "Noise", stream)
        self.watch(Engine, "__init__", engine_line)
        self.watch(RolloutLoop, "__init__", loop_line)
        self.watch(RolloutLoop, "add", self.group_line, after=True)
        self.watch(Engine, "start", self.turn_line)
        self.watch(Engine, "score_many", self.scores_line)
        self.watch(Engine, "free_pages", lambda engine: "pages freed")
        self.watch(WordGrader, "grade", grade_line)

    def group_line(self, group, loop, question, tools_for, n=1, *, name=None, step=None,
                   max_turns=None) -> str:
        assert {episode.tools.case.question.id for episode in group} == {question.id}
        streams, self.streams = self.streams, []
        return f"rollouts {', '.join(streams)}: {question.text} in at most {max_turns} turns"

    def turn_line(self, engine, sequence, sampling) -> str:
        stops = TOKENIZER.decode([*sampling.stop_ids])
        return (f"turn {self.version(engine.runner.model)}, {sampling.max_tokens} tokens, "
                f"temperature {sampling.temperature}, p {sampling.top_p}, k {sampling.top_k}, "
                f"penalty {sampling.presence_penalty}, until {stops}")

    def scores_line(self, engine, requests, temperature=1.0) -> str:
        parts = [f"scores {self.version(engine.runner.model)}, temperature {temperature}"]
        for sequence, lengths, truth in requests:
            turns = [turn_number(sequence.tokens[:length]) for length in lengths]
            parts.append(f"turns {turns} of {sequence.question}/{sequence.rollout} "
                         f"{TOKENIZER.decode(truth)!r}")
        return ", ".join(parts)


def flat(model) -> torch.Tensor:
    """All weights, adapters merged."""
    names = [name for name in model.state_dict() if "lora" not in name]
    return torch.cat([plain_weight(model, name).flatten() for name in names])


def turn_number(context: list[int]) -> int | str:
    """Of the turn that begins after these tokens."""
    if not TOKENIZER.decode(context).endswith("<|im_start|>assistant\n<think>\n"):
        return "?"
    return (context.count(TOKENIZER.im_start) - 3) // 2


def engine_line(engine, model, pages, page_size, seed=0, step_tokens=4096, vocab_limit=None) -> str:
    return f"engine {pages} pages of {page_size}, seed {seed}, {vocab_limit} ids"


def loop_line(loop, writer, told, *, tool_threads=16, tool_seconds=450.0, max_malformed=0,
              guard=None) -> str:
    return (f"loop {told.prompt[:6]!r}, {told.max_new_tokens} tokens of a turn, "
            f"{told.max_observation_tokens} of a result, {told.max_context} in all, "
            f"{told.time_limit} s, retries {told.retries}; tools: threads {tool_threads}, "
            f"{tool_seconds} s; ends when malformed {max_malformed} times")


def grade_line(grader, questions, answers) -> str:
    pairs = [f"{q.id} {a!r}" for q, a in zip(questions, answers, strict=True)]
    return f"grades by {grader.name}: {', '.join(pairs)}"


def saved_line(folder, batch) -> str:
    assert batch.credit == assign_credit(batch.samples, batch.recipe)
    return (f"rollouts saved of step {batch.step}: {len(batch.samples)}, gains by "
            f"{batch.gain_policy}, lead-in {batch.recipe.lead_in!r}")


# what the scripts of these tests decide, not the weights of a random model
DECIDED = """outcome right_pages turns malformed turns_with_gain turns_penalised gain_positive
    browse_correct browse_wrong failed judge_unknown alone updates exact_match epoch learning_rate
    groups_without_outcome_signal groups_without_any_signal""".split()


def log_line(run, step, numbers) -> str:
    shown = []
    for name, number in numbers.items():
        decided = name.removeprefix("before_").removeprefix("test_") in DECIDED
        shown.append(f"{name} {number:g}" if decided else name)
    return f"log of step {step}: {', '.join(shown)}"


def same(record: Record, written: str) -> None:
    """Comments are not compared. Lines that are indented further belong to the one before."""
    text = re.sub(r"\n {8,}", " ", written)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert record.lines() == [line for line in lines if line and not line.startswith("#")]


# ---------------------------------------------------------------------------------- the training


def watch_training(record: Record, script) -> None:
    """What both trainings do."""

    def start(loaded, config):
        record.set_policy(loaded[0])
        return f"start model, seed {config.seed}, lora {config.lora_rank}"

    def moved(norm, model, optimizer, rate, clip):
        record.stepped()
        return f"optimizer rate {rate:.3g}, clip {clip}: {record.version(model)}"

    def weighed(segments, aggregate, rollouts, tokens):
        return f"loss {aggregate} over {rollouts} sequences"

    def saved(folder, state, model, optimizer, files=()):
        return f"saved step {state['step']}, {record.version(model)}, {' '.join(sorted(files))}"

    def log_probs(model, pack, temperature=1.0, entropy=False):
        return f"log-probs {record.version(model)}, temperature {temperature}"

    record.watch(script, "load_start", start, after=True)
    record.watch(script, "adamw", lambda model, betas, decay: f"adam betas {betas}, decay {decay}")
    record.watch(update, "pack_logprobs", log_probs)
    record.watch(update, "token_weights", weighed)
    record.watch(update, "optimizer_step", moved, after=True)
    record.watch(Run, "log", log_line)
    record.watch(checkpoint, "save", saved)
    for module in (update, question_files):
        record.watch(module, "permutation", lambda count, seed: f"order of {count} by {seed}")


def with_alias(case):
    question = replace(case.question, answers=[*case.question.answers, "another spelling"])
    return replace(case, question=question)


def test_train_igpo(tmp_path, monkeypatch):
    """The numbers are the five steps of train_igpo.py."""
    config = small_igpo(
        write_model(tmp_path / "start"),
        tmp_path / "run",
        **{"seed": 5, "question_seed": 7, "steps": 2, "evaluate_every": 2, "slack": 1},
        **{"evaluate_questions": 1, "rollouts_every": 9, "outcome": "f1", "lora_rank": 2},
        **{"temperature": 0.9, "top_p": 0.95, "max_turn_tokens": 60, "max_context": 500},
        **{"max_observation_tokens": 99, "tool_seconds": 33.0, "minibatches": 2, "clip": 0.5},
        **{"learning_rate": 0.02, "weight_decay": 0.03, "kl_coef": 0.1, "clip_low": 0.1},
        **{"clip_high": 0.3, "dual_clip": 7.0, "aggregate": "token-mean", "pages": 300},
    )
    plays = [["right: right", "wrong: dog"], ["right: dog", "wrong: no"]]
    record, make_case = Record(monkeypatch), toyweb.make_case
    monkeypatch.setattr(toyweb, "make_case", lambda *rest: with_alias(make_case(*rest)))
    monkeypatch.setattr(question_files, "ToyWeb", lambda *_, **__: web_of(config))

    def updated(model, optimizer, batch, credit, reference, settings, step):
        assert settings == replace(config, recipe=settings.recipe) and reference is model
        assert credit == assign_credit(batch.samples, settings.recipe)
        names = [f"{s.rollout.question.id}/{s.number} {s.outcome:g}" for s in batch.samples]
        return f"update of step {step}: {', '.join(names)}"

    record.watch(train_igpo, "open_questions", lambda *args, **more: f"questions {args} {more}")
    watch_training(record, train_igpo)
    record.watch_rollouts(script_of(config, plays))
    record.watch(train_igpo, "igpo_update", updated)
    record.watch(update, "igpo_loss", lambda *rest: str(rest[-1]))
    record.watch(train_igpo, "save_batch", saved_line)
    train_igpo.main(config)
    same(record, IGPO)


IGPO = """
questions ('toyweb', 'toyweb', 7) {'hops': 1, 'slack': 1, 'max_turns': None, 'limit': 1}
start model, seed 5, lora 2
adam betas (0.9, 0.999), decay 0.03
engine 300 pages of 16, seed 5, 752 ids
loop 'Tools.', 60 tokens of a turn, 99 of a result, 500 in all, None s, retries 0; tools: threads
        None, 33.0 s; ends when malformed 0 times

# before the first step: an evaluation. New weights drop all pages
pages freed
rollouts 5/test-0/0/None: From Nan own? in at most 4 turns
turn weights 0, 60 tokens, temperature 0.9, p 0.95, k None, penalty 0.0, until
        <|im_end|><|endoftext|> (3x)
grades by exact match: test-0 'pets own cow'

# 1. roll out, and score the truth while its context is still in the cache
pages freed
order of 32 by (7, 0)
rollouts 5/train-17/0/0, 5/train-17/1/0: From Kai own? in at most 4 turns
rollouts 5/train-19/0/0, 5/train-19/1/0: From Hope own? in at most 4 turns
turn weights 0, 60 tokens, temperature 0.9, p 0.95, k None, penalty 0.0, until
        <|im_end|><|endoftext|> (12x)
scores weights 0, temperature 0.9,
        turns [0, 2] of train-17/0 'Answer.\\n</think>\\n\\n<answer>\\npets own emu',
        turns [0, 2] of train-17/1 'Answer.\\n</think>\\n\\n<answer>\\npets own emu',
        turns [0, 2] of train-19/0 'Answer.\\n</think>\\n\\n<answer>\\npets own ape',
        turns [0, 2] of train-19/1 'Answer.\\n</think>\\n\\n<answer>\\npets own ape'
pages freed (2x)

# 2. grade   3. gains -> rewards -> advantages
grades by word F1 of at least 0.5: train-17 'pets own emu', train-17 'dog', train-19 'dog',
        train-19 'no'

# 4. update: log-probs of the start checkpoint, then two mini-batches
update of step 1: train-17/0 1, train-17/1 0, train-19/0 0, train-19/1 0
log-probs weights 0, temperature 0.9
order of 4 by (5, 1, 0)
log-probs weights 0, temperature 0.9
loss token-mean over 2 sequences
LossConfig(clip_low=0.1, clip_high=0.3, dual_clip=7.0, kl_coef=0.1, aggregate='token-mean')
optimizer rate 0.02, clip 0.5: weights 1
log-probs weights 1, temperature 0.9
loss token-mean over 2 sequences
LossConfig(clip_low=0.1, clip_high=0.3, dual_clip=7.0, kl_coef=0.1, aggregate='token-mean')
optimizer rate 0.02, clip 0.5: weights 2

# 5. report
rollouts saved of step 1: 4, gains by current, lead-in 'Answer.'
log of step 1: outcome 0.25, gain_mean, right_pages 0.5, turns 3, malformed 0,
        groups_without_outcome_signal 0.5, groups_without_any_signal 0, advantage_max,
        turns_with_gain 1, turns_penalised 0, gain_positive 1, gain_right, gain_wrong, scale,
        browse_correct 0.5, browse_wrong 0.5, failed 0, judge_unknown 0, alone 0, pages_peak,
        rollout_tokens, loss, entropy, logprob_gap_mean, logprob_gap, policy_loss, kl, approx_kl,
        ratio_min, ratio_max, clip_fraction, dual_clip_fraction, tokens, grad_norm, updates 2,
        before_test_exact_match 1, before_test_right_pages 1, before_test_turns 3,
        before_test_malformed 0
saved step 1, weights 2, agent.json generation_config.json tokenizer.json tokenizer_config.json

# step 2
pages freed
order of 32 by (7, 0)
rollouts 5/train-2/0/1, 5/train-2/1/1: From Lee own? in at most 4 turns
rollouts 5/train-5/0/1, 5/train-5/1/1: From Bea own? in at most 4 turns
turn weights 2, 60 tokens, temperature 0.9, p 0.95, k None, penalty 0.0, until
        <|im_end|><|endoftext|> (12x)
scores weights 2, temperature 0.9,
        turns [0, 2] of train-2/0 'Answer.\\n</think>\\n\\n<answer>\\npets own doe',
        turns [0, 2] of train-2/1 'Answer.\\n</think>\\n\\n<answer>\\npets own doe',
        turns [0, 2] of train-5/0 'Answer.\\n</think>\\n\\n<answer>\\npets own bee',
        turns [0, 2] of train-5/1 'Answer.\\n</think>\\n\\n<answer>\\npets own bee'
pages freed (2x)
grades by word F1 of at least 0.5: train-2 'pets own doe', train-2 'dog', train-5 'dog', train-5
        'no'
update of step 2: train-2/0 1, train-2/1 0, train-5/0 0, train-5/1 0
log-probs weights 0, temperature 0.9
order of 4 by (5, 2, 0)
log-probs weights 2, temperature 0.9
loss token-mean over 2 sequences
LossConfig(clip_low=0.1, clip_high=0.3, dual_clip=7.0, kl_coef=0.1, aggregate='token-mean')
optimizer rate 0.02, clip 0.5: weights 3
log-probs weights 3, temperature 0.9
loss token-mean over 2 sequences
LossConfig(clip_low=0.1, clip_high=0.3, dual_clip=7.0, kl_coef=0.1, aggregate='token-mean')
optimizer rate 0.02, clip 0.5: weights 4
rollouts saved of step 2: 4, gains by current, lead-in 'Answer.'

# an evaluation every second step
pages freed
rollouts 5/test-0/0/None: From Nan own? in at most 4 turns
turn weights 4, 60 tokens, temperature 0.9, p 0.95, k None, penalty 0.0, until
        <|im_end|><|endoftext|> (3x)
grades by exact match: test-0 'pets own cow'
log of step 2: outcome 0.25, gain_mean, right_pages 0.5, turns 3, malformed 0,
        groups_without_outcome_signal 0.5, groups_without_any_signal 0, advantage_max,
        turns_with_gain 1, turns_penalised 0, gain_positive 1, gain_right, gain_wrong, scale,
        browse_correct 0.5, browse_wrong 0.5, failed 0, judge_unknown 0, alone 0, pages_peak,
        rollout_tokens, loss, entropy, logprob_gap_mean, logprob_gap, policy_loss, kl, approx_kl,
        ratio_min, ratio_max, clip_fraction, dual_clip_fraction, tokens, grad_norm, updates 2,
        test_exact_match 1, test_right_pages 1, test_turns 3, test_malformed 0
saved step 2, weights 4, agent.json generation_config.json tokenizer.json tokenizer_config.json
        (2x)
"""


def test_train_sft(tmp_path, monkeypatch):
    """Eight records; the last two are held out."""
    inputs = write_inputs(tmp_path)
    config = small_config(
        inputs,
        tmp_path / "run",
        **{"seed": 5, "steps": 3, "batch": 4, "learning_rate": 0.02, "weight_decay": 0.03},
        **{"clip": 0.5, "reduction": "trajectory-mean", "save_every": 2, "evaluate_every": 2},
    )
    numbers = {digest(e): i for i, e in enumerate(load(read_records(inputs["data"]), TINY, 400)[0])}
    record = Record(monkeypatch)

    def records(examples, settings) -> str:
        assert settings == config
        return " ".join(str(numbers[digest(example)]) for example in examples)

    watch_training(record, train_sft)
    record.watch(train_sft, "validation_loss", lambda model, examples, settings:
                 f"validation on {records(examples, settings)}")
    record.watch(train_sft, "sft_step", lambda model, optimizer, examples, rate, settings:
                 f"update on {records(examples, settings)}")
    train_sft.main(config)
    same(record, SFT)


SFT = """
start model, seed 5, lora 0
adam betas (0.9, 0.95), decay 0.03

# before the first step, on the held-out records: one pack of 400 tokens
validation on 6 7
loss seq-mean-token-mean over 2 sequences
log-probs weights 0, temperature 1.0

# step 1: two packs
order of 6 by (5, 0)
update on 3 5 2 1
loss seq-mean-token-mean over 4 sequences
log-probs weights 0, temperature 1.0
loss seq-mean-token-mean over 4 sequences
log-probs weights 0, temperature 1.0
optimizer rate 0.02, clip 0.5: weights 1
log of step 1: loss, grad_norm, learning_rate 0.02, tokens, trained_tokens, epoch 0.666667,
        before_validation_loss

# step 2: the second epoch begins within it
order of 6 by (5, 0)
order of 6 by (5, 1)
update on 0 4 1 3
loss seq-mean-token-mean over 4 sequences
log-probs weights 1, temperature 1.0
loss seq-mean-token-mean over 4 sequences
log-probs weights 1, temperature 1.0
optimizer rate 0.02, clip 0.5: weights 2
validation on 6 7
loss seq-mean-token-mean over 2 sequences
log-probs weights 2, temperature 1.0
log of step 2: loss, grad_norm, learning_rate 0.02, tokens, trained_tokens, epoch 1.33333,
        validation_loss
saved step 2, weights 2, agent.json generation_config.json tokenizer.json tokenizer_config.json

# step 3, the last
order of 6 by (5, 1)
update on 4 5 2 0
loss seq-mean-token-mean over 4 sequences
log-probs weights 2, temperature 1.0
loss seq-mean-token-mean over 4 sequences
log-probs weights 2, temperature 1.0
optimizer rate 0.01, clip 0.5: weights 3
validation on 6 7
loss seq-mean-token-mean over 2 sequences
log-probs weights 3, temperature 1.0
log of step 3: loss, grad_norm, learning_rate 0.01, tokens, trained_tokens, epoch 2,
        validation_loss
saved step 3, weights 3, agent.json generation_config.json tokenizer.json tokenizer_config.json
"""


# --------------------------------------------------------------------------- eval.py and infer.py


def watch_agent(record: Record, agent: AgentConfig) -> None:
    """What both do. Every run opens the right page; only the first run of test-0 is right."""
    web = toyweb.ToyWeb(agent.web_seed, hops=1)

    def script(name, turn, attempt):
        question = name.split("/")[1]
        play = "right: right" if question == "test-0" else "right: fish"
        return turns_of(play, question.partition(" run ")[0], web)[turn]

    record.set_policy(weights.load(agent.model))
    record.watch(weights, "load", lambda folder, *_: f"model {Path(folder).name}")
    record.watch_rollouts(script)


AGENT = {
    **{"seed": 5, "question_seed": 7, "temperature": 0.9, "top_p": 0.95, "top_k": 700},
    **{"presence_penalty": 0.2, "max_new_tokens": 60, "max_context": 500, "time_limit": 50.0},
    **{"max_observation_tokens": 99, "tool_seconds": 33.0, "retries": 2, "max_malformed": 4},
    "device": "cpu",
}


def test_eval(tmp_path, monkeypatch):
    agent = AgentConfig(model=write_model(tmp_path / "start"), **AGENT)
    config = EvalConfig(limit=2, runs=2, hops=1, slack=1, score="f1", out=str(tmp_path / "run"),
                        concurrency=3, pages=30, agent=agent)
    record = Record(monkeypatch)
    record.watch(evaluation, "open_questions", lambda *args, **more: f"questions {args} {more}")
    watch_agent(record, agent)
    record.watch(ResultsFile, "add", lambda results, run, rollout:
                 f"result of run {run} of {rollout.question.id}: {rollout.termination}")
    record.watch(evaluation, "write_json", lambda path, summary:
                 f"{path.name} of {summary['runs']} runs, accuracy {summary['accuracy']['value']}")
    evaluation.main(config)
    same(record, EVAL)


EVAL = """
# 1. make what is missing; all first runs come before all second ones
questions (None, 'toyweb', 7) {'hops': 1, 'slack': 1, 'max_turns': None, 'limit': 2}
model start
engine 30 pages of 64, seed 5, 752 ids
loop 'Tools.', 60 tokens of a turn, 99 of a result, 500 in all, 50.0 s, retries 2; tools: threads
        None, 33.0 s; ends when malformed 4 times
rollouts 5/test-0/0/None: From Cid own? in at most 4 turns
rollouts 5/test-1/0/None: From Ray own? in at most 4 turns
rollouts 5/test-0 run 1/0/None: From Cid own? in at most 4 turns
turn weights 0, 60 tokens, temperature 0.9, p 0.95, k 700, penalty 0.2, until
        <|im_end|><|endoftext|><tool_response> (9x)
result of run 0 of test-0: answered
result of run 0 of test-1: answered
result of run 1 of test-0: answered
rollouts 5/test-1 run 1/0/None: From Ray own? in at most 4 turns
turn weights 0, 60 tokens, temperature 0.9, p 0.95, k 700, penalty 0.2, until
        <|im_end|><|endoftext|><tool_response> (3x)
result of run 1 of test-1: answered

# 2. grade   3. report
grades by word F1 of at least 0.5: test-0 'pets own yak', test-1 'fish', test-0 'fish', test-1
        'fish'
report.json of 4 runs, accuracy 0.25
"""


def test_infer(tmp_path, monkeypatch):
    agent = AgentConfig(model=write_model(tmp_path / "start"), **AGENT)
    record = Record(monkeypatch)
    watch_agent(record, agent)
    for name in ("save_config", "introduce", "write_text"):
        record.watch(infer, name, lambda *_, name=name: name)
    infer.main(InferConfig(question="test-4", out=str(tmp_path / "run"), agent=agent))
    same(record, INFER)


INFER = """
model start
engine 8 pages of 64, seed 5, 752 ids
loop 'Tools.', 60 tokens of a turn, 99 of a result, 500 in all, 50.0 s, retries 2; tools: threads
        None, 33.0 s; ends when malformed 4 times
save_config
rollouts 5/test-4/0/None: From Hal own? in at most 3 turns
introduce
turn weights 0, 60 tokens, temperature 0.9, p 0.95, k 700, penalty 0.2, until
        <|im_end|><|endoftext|><tool_response> (3x)
write_text
"""
