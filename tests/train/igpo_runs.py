"""Very small runs of train_igpo.py: a model of one layer with opinions of its own, and rollouts
that follow a script."""

import tempfile
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import minvenus.tools.toyweb
import train_igpo
from minvenus import setup
from minvenus.agent.prompt import TOYWEB
from minvenus.engine import Engine
from minvenus.evaluation import questions as question_files
from minvenus.files import latest_checkpoint
from minvenus.igpo.gain import scored_lengths, truth_logprobs, wrap_truth
from minvenus.igpo.loss import LossConfig
from minvenus.igpo.recipes import Recipe
from minvenus.model import weights
from minvenus.model.precision import PRECISION
from minvenus.model.qwen3 import Qwen3
from minvenus.report.saved import load_batch, path_of
from minvenus.tools.toyweb import ToyWeb
from minvenus.train import batch as batching
from minvenus.train.pack import make_packs, pack_logprobs
from minvenus.train.settings import IGPOConfig
from minvenus.train.update import Row, make_row, train_on, with_reference
from minvenus.types import Rollout
from tests.agent.scripted import answer, engine_for, search, visit
from tests.train.runs import TINY, lively_model

RIGHT, WRONG = "right", "wrong"
# Two rollouts of two questions. Of the first one is right, of the second none: only gains tell
# these two apart.
MIXED = [["right: right", "wrong: dog"], ["right: dog", "wrong: dog"]]


def write_model(folder: Path, seed: int = 3) -> str:
    """A start checkpoint whose beliefs change from turn to turn."""
    weights.save(lively_model(seed=seed), folder, TINY.files | TOYWEB.files)
    return str(folder)


def small_igpo(model: str, out="unused", **changes) -> IGPOConfig:
    """One hop, two questions with two rollouts each, turns of up to 64 tokens."""
    values = {
        "model": model,
        "out": str(out),
        "steps": 3,
        "questions": 2,
        "group": 2,
        "hops": 1,
        "max_turn_tokens": 64,
        "max_context": 512,
        "evaluate_every": 100,
        "evaluate_questions": 2,
        "learning_rate": 1e-2,
        "kl_coef": 0.0,
        "device": "cpu",
    }
    values |= changes
    loss = {f.name: values.pop(f.name) for f in fields(LossConfig) if f.name in values}
    return IGPOConfig(**values, loss=LossConfig(**loss))


@cache
def small_web(seed: int, slack: int, test: int) -> ToyWeb:
    return ToyWeb(seed, hops=(1,), slack=slack, train=32, test=test)


def web_of(config: IGPOConfig) -> ToyWeb:
    """The run's web with few questions, one for all tests: making two thousand takes longer than a
    step."""
    return small_web(config.seed, config.slack, config.evaluate_questions)


def turns_of(play: str, question_id: str, web: ToyWeb) -> list[str]:
    """The turns of a play such as "right wrong: cat", which opens the right page, then a wrong one,
    and answers cat. "search" is a search and nothing more; the answer "right" is the true one."""
    case = web.case(question_id)
    title = case.path[0]
    other = next(name for name in case.pages if name != title)
    opened, _, said = play.partition(":")
    turns = []
    for page in opened.split():
        name = other if page == WRONG else title
        turns += [search(name)] + ([visit(case.pages[name].url)] if page != "search" else [])
    said = said.strip()
    return [*turns, answer(case.question.answers[0] if said == RIGHT else said)]


def script_of(config: IGPOConfig, plays):
    """What an engine writes: rollout i of the j-th question of every step follows plays[j][i]."""
    web, order = web_of(config), {}

    def script(name, turn, attempt):
        _, question, rollout = name.split("/")
        step, _, question_id = question.partition(" ")
        if not question_id:  # an evaluation
            return turns_of("right: right", question, web)[turn]
        place = order.setdefault(step, {}).setdefault(question_id, len(order[step]))
        return turns_of(plays[place][int(rollout)], question_id, web)[turn]

    return script


def scripted_engine(config: IGPOConfig, plays):
    """What to put in Engine's place."""

    def engine(model, pages, page_size, *_, **__):
        script = script_of(config, plays)
        return engine_for(script, pages=pages, page_size=page_size, model=model)

    return engine


def script_runs(monkeypatch, config: IGPOConfig, plays) -> None:
    """From now on every run follows the script, also one that is started as a program
    (`command`)."""
    engine = scripted_engine(config, plays)
    monkeypatch.setattr(setup, "Engine", engine)
    for module in (minvenus.tools.toyweb, question_files):
        monkeypatch.setattr(module, "ToyWeb", lambda *_, **__: web_of(config))


class UpdateReached(Exception):
    """Ends a run before its first update."""


class FirstStep(SimpleNamespace):
    """What the first step of a run has made when it reaches its update: model, optimizer, batch,
    credit, reference, config; `rows` of the batch, and `samples` of all rollouts, those that were
    dropped included."""

    def update(self, rows=None, step=1) -> dict:
        rows = self.rows if rows is None else rows
        if self.reference and self.config.loss.kl_coef:
            rows = with_reference(rows, self.reference, self.config)
        return train_on(rows, self.model, self.optimizer, self.config, step)


def first_step(config: IGPOConfig, plays) -> FirstStep:
    """Run train_igpo.py's own code up to its first update, with rollouts that follow `plays`."""
    made = FirstStep()

    def make_batch(samples, graded):
        made.samples = samples
        return batching.make_batch(samples, graded)

    def update(model, optimizer, batch, credit, reference, config, step):
        made.model, made.optimizer, made.reference = model, optimizer, reference
        made.batch, made.credit, made.config = batch, credit, config
        made.rows = [*map(make_row, batch.rollouts, credit.advantages)]
        raise UpdateReached

    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as out,
        suppress(UpdateReached),
    ):
        script_runs(patch, config, plays)
        patch.setattr(train_igpo, "make_batch", make_batch)
        patch.setattr(train_igpo, "igpo_update", update)
        train_igpo.main(replace(config, out=out))
    return made


def row_logprobs(model: Qwen3, rows: list[Row]) -> list[torch.Tensor]:
    """The log-probs of the sampled tokens of each row."""
    return [pack_logprobs(model, *make_packs([row.example], 10_000)) for row in rows]


def with_gate(monkeypatch, mean_gap: float) -> None:
    """From now on the gate on log-probs is here."""
    monkeypatch.setitem(PRECISION, "cpu", replace(PRECISION["cpu"], mean_gap=mean_gap))


def learned(run: Path, steps: int) -> float:
    """How much more the trained weights like tokens with high advantages than the tiny base does,
    over all rollouts of a run. Both in float32, so this is no rounding."""
    gain, trained = 0.0, weights.load(latest_checkpoint(run) / "model")
    for step in range(1, steps + 1):
        batch = load_batch(path_of(run, step))
        rows = [*map(make_row, [m.rollout for m in batch.samples], batch.credit.advantages)]
        with torch.no_grad():
            before = row_logprobs(weights.load(weights.TINY_BASE), rows)
            after = row_logprobs(trained, rows)
        for row, new, old in zip(rows, after, before, strict=True):
            gain += float((row.advantages * (new - old)).mean())
    return gain


def with_recipe(config: IGPOConfig, **changes) -> IGPOConfig:
    return replace(config, recipe=Recipe.paper(**changes))


def scored_again(
    model: Qwen3, rollout: Rollout, recipe: Recipe, temperature=1.0
) -> list[list[float] | None]:
    """The log-probs of the true answer before the turns of a rollout, from an engine with an empty
    cache."""
    wrapped = wrap_truth(rollout.question.answers[0], TINY, recipe)
    request = (rollout.tokens, scored_lengths(rollout, recipe), wrapped.ids)
    [scores] = Engine(model, 64, 16).score_many([request], temperature)
    return truth_logprobs(rollout, wrapped, scores, recipe)
