"""What each script calls, in order, with which arguments: a recorded run against a written list.

The parts are tested elsewhere; here it is what passes between them. All settings differ from their
defaults, so a default in a setting's place shows. `weights 3` are those of the policy after three
optimiser steps, `weights 0` those of the start checkpoint. Where a change is meant, read the
difference that pytest shows, and write it into the list.
"""

import inspect
import re
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path

import pytest
import torch

import eval as evaluation
import infer
import train_igpo
import train_sft
from minvenus import setup
from minvenus.agent.rollout import RolloutLoop
from minvenus.engine import Engine
from minvenus.evaluation import questions as question_files
from minvenus.evaluation.judge import WordGrader
from minvenus.evaluation.results import ResultsFile
from minvenus.igpo.credit import assign_credit
from minvenus.model import weights
from minvenus.model.lora import adapters, plain_weight
from minvenus.model.qwen3 import Qwen3
from minvenus.settings import AgentConfig, EvalConfig, InferConfig
from minvenus.sft.dataset import Example, load
from minvenus.tools import toyweb
from minvenus.tools.toyweb_lessons import notes
from minvenus.train import checkpoint, sft, update
from minvenus.train import run as running
from minvenus.train.batch import Batch
from minvenus.train.presets import IGPO_PRESETS, SFT_PRESETS
from minvenus.train.settings import IGPOConfig, SFTConfig
from minvenus.types import Question
from tests.agent.scripted import TOKENIZER, engine_for
from tests.train.igpo_runs import script_of, small_igpo, turns_of, web_of, write_model
from tests.train.runs import TINY, demonstrations, small_config, write_inputs

# what the plays of these tests decide, not the weights of a random model
DECIDED = """outcome right_pages turns malformed turns_with_gain turns_penalised gain_positive
    browse_correct browse_wrong failed judge_unknown alone updates exact_match epoch learning_rate
    groups_without_outcome_signal groups_without_any_signal pages_peak rollout_tokens tokens
    trained_tokens""".split()

QUESTIONS = """questions {path}, tools {tools}, seed {seed}, hops {hops}, slack {slack},
    asks {asks}, held out {limit}"""


class Record:
    """The calls of a run in their order, one line each."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.patch = patch
        self.calls: list[str] = []
        self.examples: list[list[int]] = []            # tokens of the records of a file
        self.weights: list[torch.Tensor] = []          # of the policy after 0, 1, ... steps

    def watch(self, owner, name: str, line: str, also=lambda arguments: None) -> None:
        """From now on every call of a function adds a line, in which {argument} stands for its
        value. The function is called as ever; `also` gets the arguments with its result."""
        real = getattr(owner, name)
        signature = inspect.signature(real)

        def watched(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            arguments = dict(bound.arguments)
            self.add(line, dict(arguments))
            result = real(*args, **kwargs)
            also(arguments | {"result": result})
            return result

        self.patch.setattr(owner, name, watched)

    def add(self, line: str, arguments: dict) -> None:
        for name in re.findall(r"{(\w+)}", line):
            arguments[name] = self.shown(arguments[name])
        self.calls.append(" ".join(line.format(**arguments).split()))

    def shown(self, value):
        """Models by the version of their weights, and what is long by its names."""
        match value:
            case Engine():
                return self.version(value.runner.model)
            case Qwen3():
                return self.version(value)
            case Path():
                return value.name
            case [Example(), *_]:
                return [self.examples.index(example.tokens.tolist()) for example in value]
            case [[int(), *_], *_]:
                return len(value)
            case [Question(), *_]:
                return ", ".join(question.id for question in value)
            case [(_, [*_], [*_]), *_]:                # score_many's requests
                return ", ".join(request_line(*request) for request in value)
            case Batch(samples):
                names = [f"{s.rollout.question.id}/{s.number} {s.outcome:g}" for s in samples]
                return ", ".join(names)
            case dict():
                return ", ".join(f"{k} {v:g}" if is_decided(k) else k for k, v in value.items())
        return value

    def version(self, model: Qwen3) -> str:
        """With adapters switched off it has the weights of the start."""
        if not all(adapter.active for adapter in adapters(model).values()):
            return "weights 0"
        same = [torch.equal(flat(model), stored) for stored in self.weights]
        return f"weights {same.index(True)}"

    def compare(self, written: str) -> None:
        """Lines that come several times in a row are one, with their number. In the written list
        comments do not count, and what is indented belongs to the line before."""
        calls = []
        for line, same in groupby(self.calls):
            count = len([*same])
            calls.append(line if count == 1 else f"{line} ({count}x)")
        assert calls == written_lines(written)


def written_lines(written: str) -> list[str]:
    lines = re.sub(r"\n +", " ", written).splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def is_decided(name: str) -> bool:
    return name.removeprefix("before_").removeprefix("test_") in DECIDED


def flat(model: Qwen3) -> torch.Tensor:
    """All weights, adapters merged."""
    names = [name for name in model.state_dict() if "lora" not in name]
    return torch.cat([plain_weight(model, name).flatten() for name in names])


def request_line(sequence, lengths, truth) -> str:
    """Before which turns of a rollout which text is scored."""
    turns = []
    for length in lengths:
        context = sequence.tokens[:length]
        assert TOKENIZER.decode(context).endswith("<|im_start|>assistant\n<think>\n")
        turns.append((context.count(TOKENIZER.im_start) - 3) // 2)
    return f"turns {turns} of {sequence.question}/{sequence.rollout} {TOKENIZER.decode(truth)!r}"


@pytest.fixture(autouse=True)
def a_gpu_for_others(monkeypatch):
    """All scripts run on the CPU, and none may open a CUDA context on a GPU that is there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("a CUDA context"))


# --------------------------------------------------------------------------- what is watched where


def watch_rollouts(record: Record, script) -> None:
    """The engine draws what the script says."""
    draw = engine_for(script).sampler.tokens

    def own_tools(call):
        tools = [episode.tools.case.question.text for episode in call["result"]]
        assert tools == [call["question"].text] * call["n"]

    record.watch(
        Engine,
        "__init__",
        "engine {pages} pages of {page_size}, seed {seed}, {vocab_limit} ids",
        lambda call: setattr(call["self"].sampler, "tokens", draw),
    )
    record.watch(
        RolloutLoop,
        "__init__",
        """loop {agent_format.max_new_tokens} tokens of a turn,
        {agent_format.max_observation_tokens} of a result, {agent_format.max_context} in all,
        {agent_format.time_limit} s, retries {agent_format.retries}, tools: threads {tool_threads},
        {tool_seconds} s, ends when malformed {max_malformed} times""",
    )
    record.watch(RolloutLoop, "add", "{question.text} at most {max_turns} turns", own_tools)
    record.watch(Engine, "open_group", "{prompts} streams of {question}, step {step}")
    record.watch(Engine, "start", "turn {self}, {sampling}")
    record.watch(Engine, "score_many", "scores {self}, temperature {temperature}, {requests}")
    record.watch(Engine, "free_pages", "pages freed")
    record.watch(WordGrader, "grade", "grades by {self.name}: {questions}, {answers}")


def watch_training(record: Record, script) -> None:
    """What both trainings do."""
    record.watch(
        script,
        "load_start",
        "start model, seed {config.seed}, lora {config.lora_rank}",
        lambda call: record.weights.append(flat(call["result"][0])),
    )
    record.watch(script, "adamw", "adam {betas}, decay {weight_decay}")
    for module in (update, sft):
        record.watch(module, "pack_logprobs", "log-probs {model}, temperature {temperature}")
        record.watch(module, "token_weights", "loss {aggregate} over {rollouts} sequences")
        record.watch(
            module,
            "optimizer_step",
            "optimizer {model}, rate {rate:.3g}, clip {clip}",
            lambda call: record.weights.append(flat(call["model"])),
        )
    record.watch(running.Run, "log", "log of step {step}: {numbers}")
    record.watch(checkpoint, "save", "saved step {state[step]}, {model}, {tokenizer_files}")
    for module in (update, question_files):
        record.watch(module, "permutation", "order of {count} by {seed}")


def with_alias(case):
    question = replace(case.question, answers=[*case.question.answers, "another spelling"])
    return replace(case, question=question)


# ----------------------------------------------------------------------------- the four scripts


def test_train_igpo(tmp_path, monkeypatch):
    """The numbers in the list are the five steps of train_igpo.py."""
    config = small_igpo(
        write_model(tmp_path / "start"),
        tmp_path / "run",
        **{"seed": 5, "question_seed": 7, "steps": 2, "evaluate_every": 2, "save_every": 2},
        **{"evaluate_questions": 1, "rollouts_every": 9, "outcome": "f1", "lora_rank": 2},
        **{"temperature": 0.9, "top_p": 0.95, "max_turn_tokens": 60, "max_context": 500},
        **{"max_observation_tokens": 99, "tool_seconds": 33.0, "minibatches": 2, "clip": 0.5},
        **{"learning_rate": 0.02, "weight_decay": 0.03, "kl_coef": 0.1, "clip_low": 0.1},
        **{"clip_high": 0.3, "dual_clip": 7.0, "aggregate": "token-mean", "pages": 300},
        **{"asks": "last", "slack": 1},
    )
    plays = [["right: right", "wrong: dog"], ["right: dog", "wrong: no"]]
    record, make_case = Record(monkeypatch), toyweb.make_case
    monkeypatch.setattr(toyweb, "make_case", lambda *rest: with_alias(make_case(*rest)))
    monkeypatch.setattr(question_files, "ToyWeb", lambda *_, **__: web_of(config))

    def whole(call):
        settings = call["config"]
        assert settings == replace(config, recipe=settings.recipe)
        assert call["credit"] == assign_credit(call["batch"].samples, settings.recipe)
        assert call["reference"] is call["model"], "with its adapters switched off"

    def with_credit(call):
        saved = call["batch"]
        assert saved.credit == assign_credit(saved.samples, saved.recipe)

    record.watch(setup, "open_questions", QUESTIONS)
    watch_training(record, train_igpo)
    watch_rollouts(record, script_of(config, plays))
    record.watch(train_igpo, "igpo_update", "update of step {step}: {batch}", whole)
    record.watch(update, "igpo_loss", "{config}")
    record.watch(
        train_igpo,
        "save_batch",
        """rollouts of step {batch.step} saved, gains by {batch.gain_policy}, lead-in
        {batch.recipe.lead_in}""",
        with_credit,
    )
    train_igpo.main(config)
    record.compare(IGPO)


IGPO = """
questions toyweb, tools toyweb, seed 7, hops 1, slack 1, asks last, held out 1
start model, seed 5, lora 2
adam (0.9, 0.999), decay 0.03
engine 300 pages of 16, seed 5, 752 ids
loop 60 tokens of a turn, 99 of a result, 500 in all, None s, retries 0, tools: threads None, 33.0
    s, ends when malformed 0 times

# before the first step: an evaluation. New weights drop all pages
pages freed
From Nan own? at most 4 turns
1 streams of test-0, step None
turn weights 0, Sampling(max_tokens=60, temperature=0.9, top_k=None, top_p=0.95,
    presence_penalty=0.0, stop_ids=(728, 726)) (3x)
grades by exact match: test-0, ['pets own cow']

# 1. roll out, and score the truth while its context is still in the cache
pages freed
order of 32 by (7, 0)
From Kai own? at most 4 turns
2 streams of train-17, step 0
From Hope own? at most 4 turns
2 streams of train-19, step 0
turn weights 0, Sampling(max_tokens=60, temperature=0.9, top_k=None, top_p=0.95,
    presence_penalty=0.0, stop_ids=(728, 726)) (12x)
scores weights 0, temperature 0.9,
    turns [0, 2] of train-17/0 'Answer.\\n</think>\\n\\n<answer>\\npets own emu',
    turns [0, 2] of train-17/1 'Answer.\\n</think>\\n\\n<answer>\\npets own emu',
    turns [0, 2] of train-19/0 'Answer.\\n</think>\\n\\n<answer>\\npets own ape',
    turns [0, 2] of train-19/1 'Answer.\\n</think>\\n\\n<answer>\\npets own ape'
pages freed (2x)

# 2. grade   3. gains -> rewards -> advantages
grades by word F1 of at least 0.5: train-17, train-17, train-19, train-19, ['pets own emu', 'dog',
    'dog', 'no']

# 4. update: log-probs of the start checkpoint, then two mini-batches
update of step 1: train-17/0 1, train-17/1 0, train-19/0 0, train-19/1 0
log-probs weights 0, temperature 0.9
order of 4 by (5, 1, 0)
log-probs weights 0, temperature 0.9
loss token-mean over 2 sequences
LossConfig(clip_low=0.1, clip_high=0.3, dual_clip=7.0, kl_coef=0.1, aggregate='token-mean')
optimizer weights 0, rate 0.02, clip 0.5
log-probs weights 1, temperature 0.9
loss token-mean over 2 sequences
LossConfig(clip_low=0.1, clip_high=0.3, dual_clip=7.0, kl_coef=0.1, aggregate='token-mean')
optimizer weights 1, rate 0.02, clip 0.5

# 5. report
rollouts of step 1 saved, gains by current, lead-in Answer.
log of step 1: outcome 0.25, gain_mean, right_pages 0.5, turns 3, malformed 0,
    groups_without_outcome_signal 0.5, groups_without_any_signal 0, advantage_max, turns_with_gain
    1, turns_penalised 0, gain_positive 1, gain_right, gain_wrong, scale, browse_correct 0.5,
    browse_wrong 0.5, failed 0, judge_unknown 0, alone 0, pages_peak 40, rollout_tokens 429, loss,
    entropy, logprob_gap_mean, logprob_gap, policy_loss, kl, approx_kl, ratio_min, ratio_max,
    clip_fraction, dual_clip_fraction, tokens 473, grad_norm, updates 2, before_test_exact_match 1,
    before_test_right_pages 1, before_test_turns 3, before_test_malformed 0

# step 2
pages freed
order of 32 by (7, 0)
From Lee own? at most 4 turns
2 streams of train-2, step 1
From Bea own? at most 4 turns
2 streams of train-5, step 1
turn weights 2, Sampling(max_tokens=60, temperature=0.9, top_k=None, top_p=0.95,
    presence_penalty=0.0, stop_ids=(728, 726)) (12x)
scores weights 2, temperature 0.9,
    turns [0, 2] of train-2/0 'Answer.\\n</think>\\n\\n<answer>\\npets own doe',
    turns [0, 2] of train-2/1 'Answer.\\n</think>\\n\\n<answer>\\npets own doe',
    turns [0, 2] of train-5/0 'Answer.\\n</think>\\n\\n<answer>\\npets own bee',
    turns [0, 2] of train-5/1 'Answer.\\n</think>\\n\\n<answer>\\npets own bee'
pages freed (2x)
grades by word F1 of at least 0.5: train-2, train-2, train-5, train-5, ['pets own doe', 'dog',
    'dog', 'no']
update of step 2: train-2/0 1, train-2/1 0, train-5/0 0, train-5/1 0
log-probs weights 0, temperature 0.9
order of 4 by (5, 2, 0)
log-probs weights 2, temperature 0.9
loss token-mean over 2 sequences
LossConfig(clip_low=0.1, clip_high=0.3, dual_clip=7.0, kl_coef=0.1, aggregate='token-mean')
optimizer weights 2, rate 0.02, clip 0.5
log-probs weights 3, temperature 0.9
loss token-mean over 2 sequences
LossConfig(clip_low=0.1, clip_high=0.3, dual_clip=7.0, kl_coef=0.1, aggregate='token-mean')
optimizer weights 3, rate 0.02, clip 0.5
rollouts of step 2 saved, gains by current, lead-in Answer.

# an evaluation every second step
pages freed
From Nan own? at most 4 turns
1 streams of test-0, step None
turn weights 4, Sampling(max_tokens=60, temperature=0.9, top_k=None, top_p=0.95,
    presence_penalty=0.0, stop_ids=(728, 726)) (3x)
grades by exact match: test-0, ['pets own cow']
log of step 2: outcome 0.25, gain_mean, right_pages 0.5, turns 3, malformed 0,
    groups_without_outcome_signal 0.5, groups_without_any_signal 0, advantage_max, turns_with_gain
    1, turns_penalised 0, gain_positive 1, gain_right, gain_wrong, scale, browse_correct 0.5,
    browse_wrong 0.5, failed 0, judge_unknown 0, alone 0, pages_peak 40, rollout_tokens 429, loss,
    entropy, logprob_gap_mean, logprob_gap, policy_loss, kl, approx_kl, ratio_min, ratio_max,
    clip_fraction, dual_clip_fraction, tokens 473, grad_norm, updates 2, test_exact_match 1,
    test_right_pages 1, test_turns 3, test_malformed 0
saved step 2, weights 4, tokenizer.json, tokenizer_config.json, generation_config.json, agent.json
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
    record = Record(monkeypatch)
    examples, _ = load(demonstrations(8), TINY, 400)
    record.examples = [example.tokens.tolist() for example in examples]

    def whole(call):
        assert call["config"] == config

    watch_training(record, train_sft)
    record.watch(train_sft, "validation_loss", "validation on {examples}", whole)
    record.watch(train_sft, "sft_step", "update on {examples}", whole)
    train_sft.main(config)
    record.compare(SFT)


SFT = """
start model, seed 5, lora 0
adam (0.9, 0.95), decay 0.03

# before the first step, on the held-out records: one pack of 400 tokens
validation on [6, 7]
loss seq-mean-token-mean over 2 sequences
log-probs weights 0, temperature 1.0

# step 1: two packs
order of 6 by (5, 0)
update on [3, 5, 2, 1]
loss seq-mean-token-mean over 4 sequences
log-probs weights 0, temperature 1.0
loss seq-mean-token-mean over 4 sequences
log-probs weights 0, temperature 1.0
optimizer weights 0, rate 0.02, clip 0.5
log of step 1: loss, grad_norm, learning_rate 0.02, tokens 476, trained_tokens 236, epoch 0.666667,
    before_validation_loss

# step 2: the second epoch begins within it
order of 6 by (5, 0)
order of 6 by (5, 1)
update on [0, 4, 1, 3]
loss seq-mean-token-mean over 4 sequences
log-probs weights 1, temperature 1.0
loss seq-mean-token-mean over 4 sequences
log-probs weights 1, temperature 1.0
optimizer weights 1, rate 0.02, clip 0.5
validation on [6, 7]
loss seq-mean-token-mean over 2 sequences
log-probs weights 2, temperature 1.0
log of step 2: loss, grad_norm, learning_rate 0.02, tokens 476, trained_tokens 236, epoch 1.33333,
    validation_loss
saved step 2, weights 2, tokenizer.json, tokenizer_config.json, generation_config.json, agent.json

# step 3, the last
order of 6 by (5, 1)
update on [4, 5, 2, 0]
loss seq-mean-token-mean over 4 sequences
log-probs weights 2, temperature 1.0
loss seq-mean-token-mean over 4 sequences
log-probs weights 2, temperature 1.0
optimizer weights 2, rate 0.01, clip 0.5
validation on [6, 7]
loss seq-mean-token-mean over 2 sequences
log-probs weights 3, temperature 1.0
log of step 3: loss, grad_norm, learning_rate 0.01, tokens 476, trained_tokens 236, epoch 2,
    validation_loss
saved step 3, weights 3, tokenizer.json, tokenizer_config.json, generation_config.json, agent.json
"""


def watch_agent(record: Record, agent: AgentConfig) -> None:
    """Every run opens the right page; only the first one of test-0 is right."""
    web = toyweb.ToyWeb(agent.web_seed, hops=1, asks=agent.asks)

    def script(name, turn, attempt):
        question = name.split("/")[1]
        play = "right: right" if question == "test-0" else "right: fish"
        return turns_of(play, question.partition(" run ")[0], web)[turn]

    record.weights.append(flat(weights.load(agent.model)))
    record.watch(weights, "load", "model {folder}")
    watch_rollouts(record, script)


AGENT = {
    **{"seed": 5, "question_seed": 7, "temperature": 0.9, "top_p": 0.95, "top_k": 700},
    **{"presence_penalty": 0.2, "max_new_tokens": 60, "max_context": 500, "time_limit": 50.0},
    **{"max_observation_tokens": 99, "tool_seconds": 33.0, "retries": 2, "max_malformed": 4},
    **{"device": "cpu", "asks": "last"},
}


def test_eval(tmp_path, monkeypatch):
    agent = AgentConfig(model=write_model(tmp_path / "start"), **AGENT)
    config = EvalConfig(limit=2, runs=2, hops=1, slack=1, score="f1", out=str(tmp_path / "run"),
                        concurrency=3, pages=30, agent=agent)
    record = Record(monkeypatch)
    record.watch(evaluation, "open_questions", QUESTIONS)
    watch_agent(record, agent)
    line = "result of run {run} of {rollout.question.id}: {rollout.termination}"
    record.watch(ResultsFile, "add", line)
    line = "{path} of {value[runs]} runs, right {value[accuracy][value]}"
    record.watch(evaluation, "write_json", line)
    evaluation.main(config)
    record.compare(EVAL)


EVAL = """
# 1. make what is missing; all first runs come before all second ones
questions None, tools toyweb, seed 7, hops 1, slack 1, asks last, held out 2
model start
engine 30 pages of 64, seed 5, 752 ids
loop 60 tokens of a turn, 99 of a result, 500 in all, 50.0 s, retries 2, tools: threads None, 33.0
    s, ends when malformed 4 times
After Cid own? at most 4 turns
1 streams of test-0, step None
After Ray own? at most 4 turns
1 streams of test-1, step None
After Cid own? at most 4 turns
1 streams of test-0 run 1, step None
turn weights 0, Sampling(max_tokens=60, temperature=0.9, top_k=700, top_p=0.95,
    presence_penalty=0.2, stop_ids=(728, 726, 748)) (9x)
result of run 0 of test-0: answered
result of run 0 of test-1: answered
result of run 1 of test-0: answered
After Ray own? at most 4 turns
1 streams of test-1 run 1, step None
turn weights 0, Sampling(max_tokens=60, temperature=0.9, top_k=700, top_p=0.95,
    presence_penalty=0.2, stop_ids=(728, 726, 748)) (3x)
result of run 1 of test-1: answered

# 2. grade   3. report
grades by word F1 of at least 0.5: test-0, test-1, test-0, test-1, ['pet own yak', 'fish', 'fish',
    'fish']
report.json of 4 runs, right 0.25
"""


def test_infer(tmp_path, monkeypatch):
    agent = AgentConfig(model=write_model(tmp_path / "start"), **AGENT)
    record = Record(monkeypatch)
    watch_agent(record, agent)
    record.watch(infer, "save_config", "settings saved")
    record.watch(infer, "introduce", "asked: {question.text}")
    record.watch(infer, "write_text", "trajectory saved")
    infer.main(InferConfig(question="test-4", out=str(tmp_path / "run"), agent=agent))
    record.compare(INFER)


INFER = """
model start
engine 8 pages of 64, seed 5, 752 ids
loop 60 tokens of a turn, 99 of a result, 500 in all, 50.0 s, retries 2, tools: threads None, 33.0
    s, ends when malformed 4 times
settings saved
After Hal own? at most 3 turns
1 streams of test-4, step None
asked: After Hal own?
turn weights 0, Sampling(max_tokens=60, temperature=0.9, top_k=700, top_p=0.95,
    presence_penalty=0.2, stop_ids=(728, 726, 748)) (3x)
trajectory saved
"""


# --------------------------------------------------------------------------------- what is not said


def test_what_a_setting_is_where_nothing_is_said_and_with_a_preset():
    lines = []
    for settings in (InferConfig(), EvalConfig(), SFTConfig(), IGPOConfig()):
        lines.append(line_of(type(settings).__name__, running.flat(asdict(settings))))
    for name, presets in (("SFT", SFT_PRESETS), ("IGPO", IGPO_PRESETS)):
        lines += [line_of(f"{name} {preset}", values) for preset, values in presets.items()]
    assert lines == written_lines(DEFAULTS)


def line_of(name: str, values: dict) -> str:
    return f"{name}: {', '.join(f'{k} {v}' for k, v in values.items())}".strip()


DEFAULTS = """
InferConfig: question None, json False, out runs/infer, model tiny, device auto, api_base None,
    api_model None, prompt_ids True, like None, system_prompt None, tools toyweb, tool_seconds
    450.0, max_observation_tokens None, max_turns None, max_context None, max_new_tokens None,
    max_malformed 5, time_limit None, temperature None, top_p None, top_k None, presence_penalty
    None, retries None, seed 0, question_seed None, asks every
EvalConfig: questions None, limit None, runs 1, hops None, slack None, score em, judge False, out
    None, concurrency None, pages None, redo_failed False, json False, compare None, xray None,
    group None, answer None, model tiny, device auto, api_base None, api_model None, prompt_ids
    True, like None, system_prompt None, tools toyweb, tool_seconds 450.0, max_observation_tokens
    None, max_turns None, max_context None, max_new_tokens None, max_malformed 5, time_limit None,
    temperature None, top_p None, top_k None, presence_penalty None, retries None, seed 0,
    question_seed None, asks every
SFTConfig: preset tiny, model tiny-base, out runs/sft, seed 0, steps 250, evaluate_every 50,
    save_every 50, plan False, device auto, data toyweb, like None, max_tokens 4096, validation 64,
    batch 16, reduction token-mean, learning_rate 0.001, warmup 0.1, weight_decay 0.01, clip 1.0,
    lora_rank 0, pack_tokens 8192, recompute False, offload False, demonstrations 768, most_hops 4,
    asks every, wrong_result 0.5, replay 0.25
IGPOConfig: preset tiny, model tiny-base, out runs/igpo, seed 0, steps 80, evaluate_every 20,
    save_every 1, rollouts_every 20, plan False, device auto, data toyweb, tools toyweb,
    tool_seconds 450.0, like None, system_prompt None, questions 8, group 4, evaluate_questions 128,
    use_gain True, gain log_prob, browse replicate, newlines_after_think 2, lead_in Now there's
    enough information to answer, format_penalty 1.0, penalty_scope turn, normalize scaled,
    center_gain True, spread std, ig_weight 1.0, outcome_on last, gamma 0.95, discount_over turns,
    gain_policy current, outcome em, judge False, temperature 1.0, top_p 1.0, max_turns None,
    max_turn_tokens 48, max_context 768, max_observation_tokens 8192, epochs 1, minibatches 1,
    learning_rate 0.0006, weight_decay 0.01, clip 1.0, clip_low 0.2, clip_high 0.2, dual_clip None,
    kl_coef 0.001, aggregate seq-mean-token-mean, lora_rank 0, pages 6144, expected_context None,
    pack_tokens 4096, recompute False, offload False, hops 4, slack 0, asks every, question_seed
    None

SFT tiny:
SFT smollm2: model smollm2-135m, steps 100, batch 4, validation 16, learning_rate 0.0002, max_tokens
    1536, pack_tokens 3072, reduction trajectory-mean, recompute False
SFT qwen3-0.6b: model qwen3-0.6b, steps 500, batch 32, learning_rate 1e-05, max_tokens 16384,
    pack_tokens 16384, reduction trajectory-mean, recompute True
SFT qwen3-4b-lora: model qwen3-4b, steps 500, batch 32, learning_rate 0.0001, max_tokens 32768,
    pack_tokens 32768, reduction trajectory-mean, recompute True, lora_rank 32
SFT dr-venus-4b: model qwen3-4b-thinking-2507, like dr-venus, steps 585, batch 32, learning_rate
    1e-05, max_tokens 200000, pack_tokens 200000, reduction trajectory-mean, recompute True, offload
    True

IGPO tiny:
IGPO smollm2: model smollm2-135m, steps 40, questions 4, group 4, learning_rate 2e-05, max_turns 12,
    max_turn_tokens 96, max_context 1536, max_observation_tokens 256, pages 2048, pack_tokens 2048,
    recompute False, save_every 5
IGPO qwen3-0.6b: model qwen3-0.6b, steps 100, questions 8, group 8, learning_rate 1e-06, max_turns
    40, max_turn_tokens 2048, max_context 16384, pages 7168, pack_tokens 16384, recompute True,
    save_every 10
IGPO qwen3-4b-lora: model qwen3-4b, steps 100, questions 8, group 8, learning_rate 1e-05, max_turns
    80, max_turn_tokens 4096, max_context 32768, pages 16448, pack_tokens 32768, recompute True,
    save_every 10, lora_rank 32
IGPO dr-venus-4b: model qwen3-4b-thinking-2507, like dr-venus, steps 62, questions 16, group 8,
    learning_rate 1e-06, top_p 0.95, max_turns 200, max_turn_tokens 8192, max_context 262144,
    expected_context 65536, pages 16512, pack_tokens 262144, recompute True, offload True,
    save_every 5
"""


def test_the_toy_data_of_train_sft(monkeypatch, capsys):
    """Nine demonstrations, of which three are held out; texts of the base are 40 %."""
    record = Record(monkeypatch)
    line = "web {seed}, hops {hops}, slack {slack}, {train} questions, asks {asks}"
    record.watch(train_sft, "ToyWeb", line)
    record.watch(train_sft, "demonstrations", "{count} of {split} by {teacher}, seed {seed}")
    record.watch(train_sft, "notes", "text {index} of the base, seed {seed}")
    config = SFTConfig(
        **{"seed": 5, "most_hops": 2, "demonstrations": 9, "asks": "last", "validation": 3},
        **{"wrong_result": 0.125, "replay": 0.4, "model": "tiny"},
    )
    training, held_out, _ = train_sft.load_examples(config, TINY)
    record.compare(TOY_DATA)
    assert (len(training), len(held_out)) == (10, 3)
    for i in range(4):
        text = "".join(piece for piece, _ in notes(6, i))
        assert TINY.decode(training[6 + i].tokens.tolist()) == text
    out = capsys.readouterr().out
    assert "3 held out, 6 trained on\n            and 4 texts like those" in out


TOY_DATA = """
web 5, hops (1, 2), slack 0, 9 questions, asks last
9 of train by Teacher(wrong_result=0.125, wrong_relation=0.3, at_once=0.03, stop_early=0.05,
    cut_off=0.5), seed 5
text 0 of the base, seed 6
text 1 of the base, seed 6
text 2 of the base, seed 6
text 3 of the base, seed 6
"""
