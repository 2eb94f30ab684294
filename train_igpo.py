"""Stage two: reinforcement learning with IGPO.   python train_igpo.py --help"""

import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch

from minvenus.agent.episode import Limits
from minvenus.agent.policy import EnginePolicy, prompt_and_notices
from minvenus.agent.protocol import final_answer
from minvenus.agent.rollout import RolloutLoop
from minvenus.config import ConfigError, Recipe
from minvenus.console import Progress
from minvenus.engine import Engine, Sampling
from minvenus.engine.score_packed import score_packed
from minvenus.evaluation.answers import exact_match, f1
from minvenus.evaluation.judge import Judge, JudgeUnreliable
from minvenus.evaluation.questions import open_questions
from minvenus.files import claimed, digest, latest_checkpoint
from minvenus.flags import parse_flags, save_config
from minvenus.igpo.credit import Credit, credit
from minvenus.igpo.gain import answer_logprobs, scored_lengths, wrap_answer
from minvenus.model.weights import TINY_BASE, device_of, start_folder, start_model
from minvenus.report import saved
from minvenus.report.run_page import write_run_page
from minvenus.settings import IGPO_PRESETS, AgentConfig, EvalConfig, IGPOConfig
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.base import ToolCounters, ToolErrorRate
from minvenus.tools.cassette import MissingRecording
from minvenus.tools.toyweb_lessons import LEAD_IN
from minvenus.train import checkpoint, igpo, metrics
from minvenus.train.data import batch_indices
from minvenus.train.igpo_batch import Batch, behaviour, health, make_batch, mean
from minvenus.train.optim import Diverged, adamw
from minvenus.train.signals import stop_on_signals
from minvenus.types import Question, Rollout

# the numbers on the progress line, the most telling first: a terminal shows as many as fit
SHOWN = {"outcome": "outcome", "exact_match": "test_exact_match", "gain": "gain_mean", "right": "right_pages", "turns": "turns",
         "malformed": "malformed", "no_signal": "groups_without_any_signal", "kl": "kl", "grad": "grad_norm",
         "gap": "logprob_gap", "no_outcome": "groups_without_outcome_signal", "positive": "gain_positive",
         "browse_right": "browse_correct", "browse_wrong": "browse_wrong", "ratio_min": "ratio_min", "ratio_max": "ratio_max",
         "clipped": "clip_fraction", "entropy": "entropy", "pages": "pages_peak", "scoring": "scoring_share",
         "rollout_tok/s": "rollout_tokens_per_second", "scoring_tok/s": "scoring_tokens_per_second",
         "update_tok/s": "update_tokens_per_second"}
STOPS = (Diverged, JudgeUnreliable, ToolErrorRate, MissingRecording)       # nothing is wrong with the steps before


def main(config: IGPOConfig) -> Path:
    """Train, and return the folder of the trained model."""
    run = Path(config.out)
    with claimed(run, "training"):
        newest = latest_checkpoint(run)
        if newest and config.resume == "never":
            raise ConfigError(f"{run} holds a run already: choose another --out, remove it, or go on with --resume auto")
        job = Job(config)
        try:
            return train(job, newest)
        finally:
            job.close()


def train(job: "Job", newest: Path | None) -> Path:
    """All steps that are left after the checkpoint `newest`."""
    config, run = job.config, Path(job.config.out)
    start = job.restore(newest) if newest else 0
    save_config(config, run)
    log, progress = metrics.Metrics(run, start), Progress("igpo", start, config.steps)
    with stop_on_signals() as stop:
        for step in range(start, config.steps):
            last, job.phases = step + 1 == config.steps, metrics.Phases()
            try:
                before = {f"before_{name}": number for name, number in job.evaluation().items()} if step == 0 else {}
                collected, logprobs = job.collect(job.questions(step), step)
                batch = job.grade(collected, logprobs)                  # what has no outcome is dropped and counted
                credited = credit(batch.measured, job.recipe)
                stats = job.update(batch, credited, step)
            except STOPS as error:
                if not getattr(error, "moved", False):                  # the weights are still those of the last whole step
                    job.save(log, step)
                progress.end()
                raise
            job.engine.weights_changed()                                # every cached page is stale now
            numbers = job.numbers(batch, credited) | stats | before
            failure: Exception | None = None
            if last or (step + 1) % config.evaluate_every == 0:
                try:
                    numbers |= job.evaluation()
                except STOPS as error:                                  # the step itself is whole, and is kept
                    failure = error
            if batch.rollouts and (last or step == 0 or (step + 1) % config.rollouts_every == 0):
                saved.save_batch(run, saved.SavedBatch(step + 1, config.gain_policy, job.recipe, batch.rollouts, batch.measured,
                                                         credited))
            timing = job.timing()
            log.log(step + 1, numbers, timing)
            progress.show(step + 1, shown(numbers, timing), timing)
            stopping = bool(stop or failure)                            # read once: a signal may come at any moment
            if last or stopping or (step + 1) % config.save_every == 0:
                newest = job.save(log, step + 1)
            if failure:
                progress.end()
                raise failure
            if stopping and not last:
                progress.end()
                print(f"stopped after step {step + 1} of {config.steps}; the same command goes on from there")
                break
    assert newest is not None
    return newest / "model"


class Job:
    """The parts that a run is made of, and the steps of a batch: collect, grade, update, evaluate."""

    def __init__(self, config: IGPOConfig):
        self.config, self.phases = config, metrics.Phases()
        self.prepare()                              # before a large model is loaded: whatever is missing shows at once
        device = device_of(config.device)
        torch.manual_seed(config.seed)              # nothing draws from it, but its state is part of every checkpoint
        self.model = start_model(config.model, device, config.seed)
        self.tokenizer = Tokenizer.of_model(start_folder(config.model))
        self.model.model.recompute = config.recompute
        self.reference = None                       # the frozen start checkpoint
        if config.kl_coef or config.gain_policy == "reference":
            self.reference = start_model(config.model, device, config.seed).requires_grad_(False)
        self.optimizer = adamw(self.model, (0.9, 0.999), config.weight_decay)
        self.engine = Engine(self.model, config.pages, config.page_size, config.seed, vocab_limit=self.tokenizer.size)

    def prepare(self) -> None:
        """What is asked, with which tools, in which words, and who grades."""
        config, same = self.config, as_evaluated(self.config)
        system, notices = prompt_and_notices(same.agent)
        toy, held_out = config.data == "toyweb", config.evaluate_questions or 0
        self.asked = open_questions(same.questions, config.tools, config.seed, hops=config.hops, slack=config.slack,
                                    max_turns=None if toy else config.max_turns, limit=held_out, per_step=config.questions)
        self.identity = digest([self.asked.fingerprint, system])
        self.sampling = Sampling(config.max_turn_tokens, config.temperature, top_p=config.top_p)
        threads = None if self.asked.immediate else config.tool_threads
        self.limits = Limits(config.max_turns, config.max_context, config.max_turn_tokens, config.max_observation_tokens,
                             tool_seconds=config.tool_seconds, tool_threads=threads)
        self.options = {"system": system, "notices": notices, "counters": ToolCounters()}
        # on the toy web the tiny model's scored answer begins as those of the demonstrations do: that it has learned to write
        learned = toy and same.agent.tiny and config.recipe.lead_in == Recipe().lead_in
        self.recipe = replace(config.recipe, lead_in=LEAD_IN) if learned else config.recipe
        self.judge = None
        if config.judge:
            Path(config.out).mkdir(parents=True, exist_ok=True)
            self.judge = Judge(config.judge_cache or Path(config.out) / "judge.sqlite")

    def questions(self, step: int) -> list[Question]:
        every = self.asked.training
        return [every[i] for i in batch_indices(step, self.config.questions, len(every), self.config.seed)]

    def collect(self, questions_Q: list[Question], step: int):
        """Rollouts of every question, and the log-probs that their gains need, scored on the pages that are still there."""
        policy = EnginePolicy(self.engine, self.tokenizer, self.sampling)
        self.engine.reset_counters()
        with RolloutLoop(policy, self.tokenizer, self.limits, training=True, keep_open=True, **self.options) as loop:
            finished = []
            for question, name in zip(questions_Q, names_of(questions_Q), strict=True):
                finished += loop.add(question, self.asked.tools_for, self.config.group, name=name, step=step,
                                     max_turns=self.asked.max_turns(question))
            loop.run()
            ran = self.engine.counters()
            self.phases.lap("rollout", ran.prefilled + ran.decoded)
            logprobs = self.measure(finished)
        return [f.rollout for f in finished], logprobs

    def measure(self, finished) -> list[list[list[float] | None]]:
        """Per rollout and turn, the log-probs of the answer's tokens before it; all of all rollouts come out of one call."""
        wrapped = [wrap_answer(f.rollout.question.answers[0], self.tokenizer, self.recipe) for f in finished]
        lengths = [scored_lengths(f.rollout, self.recipe) for f in finished]
        asked = [i for i, own in enumerate(lengths) if own]
        if self.config.gain_policy == "reference":
            answered = [score_packed(self.reference, finished[i].rollout.tokens, lengths[i], [wrapped[i].ids] * len(lengths[i]),
                                     self.config.temperature) for i in asked]
        else:
            answered = self.engine.score_many([(finished[i].sequence, lengths[i], wrapped[i].ids) for i in asked],
                                              self.config.temperature)
        scores = dict(zip(asked, answered, strict=True))
        self.phases.lap("scoring", sum(len(lengths[i]) * len(wrapped[i].ids) for i in asked))
        return [answer_logprobs(f.rollout, wrapped[i], scores.get(i, []), self.recipe) for i, f in enumerate(finished)]

    def grade(self, collected: list[Rollout], logprobs) -> Batch:
        """Outcomes; the group of a rollout is its question. An answer without a verdict has none, and its rollout is dropped."""
        def outcomes(sound: list[Rollout]) -> list[float | None]:
            pairs = [(rollout.question, final_answer(rollout.turns)) for rollout in sound]
            if self.judge:
                return [None if verdict.correct is None else float(verdict.correct) for verdict in self.judge.verdicts(pairs)]
            compare = exact_match if self.config.outcome == "em" else f1
            return [compare(answer, question.answers) for question, answer in pairs]

        batch = make_batch(collected, logprobs, self.config.group, outcomes)
        self.phases.lap("grading")
        return batch

    def update(self, batch: Batch, credited: Credit, step: int) -> dict:
        """Epochs of optimiser steps on the batch. What has no signal costs none."""
        rows = [igpo.trained(rollout, advantages)
                for rollout, advantages in zip(batch.rollouts, credited.record.advantages, strict=True)]
        stats = igpo.update(self.model, self.optimizer, rows, self.reference, self.config, step)
        self.phases.lap("update", stats.pop("tokens"))
        return stats

    def numbers(self, batch: Batch, credited: Credit) -> dict:
        """What the step says about the policy as it was while it sampled."""
        return health(batch, credited, *self.asked.visits(batch.rollouts)) | {"pages_peak": self.engine.counters().pages_peak}

    def evaluation(self) -> dict:
        """Exact match on held-out questions, one sampled rollout each, and what these were like; nothing where none is held out.
        Answers are compared, whoever grades the training: it should be cheap."""
        if not self.asked.held_out:
            return {}
        self.phases.lap("rest")
        policy = EnginePolicy(self.engine, self.tokenizer, self.sampling)
        with RolloutLoop(policy, self.tokenizer, self.limits, **self.options) as loop:
            episodes = []
            for question in self.asked.held_out:
                episodes += loop.add(question, self.asked.tools_for, max_turns=self.asked.max_turns(question))
            loop.run()
        done = [episode.rollout for episode in episodes]
        right = [exact_match(final_answer(rollout.turns), rollout.question.answers) for rollout in done]
        numbers = {"test_exact_match": mean(right)}
        about = behaviour(done, *self.asked.visits(done))
        numbers |= {f"test_{name}": number for name, number in about.items() if number is not None}
        self.engine.weights_changed()               # the next step finds no pages that a resumed run would not have
        self.phases.lap("evaluation")
        return numbers

    def timing(self) -> dict:
        self.phases.lap("rest")
        scoring, sampling = (self.phases.seconds[phase] for phase in ("scoring", "rollout"))
        return self.phases.timing() | {"scoring_share": scoring / (scoring + sampling)}

    def save(self, log: metrics.Metrics, step: int) -> Path:
        """The checkpoint after `step` steps; its lines of the metrics are on the disk no later."""
        log.sync()
        state = {"config": asdict(self.config), "asked": self.identity}
        return checkpoint.save(self.config.out, step, self.model, self.optimizer, state, self.tokenizer.files)

    def restore(self, folder: Path) -> int:
        """How many steps the checkpoint has seen."""
        state = checkpoint.restore(folder, self.model, self.optimizer, self.config)
        if state["asked"] != self.identity:
            raise ConfigError(f"{folder} was made with another system prompt or other questions in {self.config.data}: use the "
                              "same, or another --out")
        return state["step"]

    def close(self) -> None:
        self.asked.close()
        if self.judge:
            self.judge.close()


def names_of(questions: list[Question]) -> list[str]:
    """Names of the questions of a step, for the sampling. Where an epoch ends within a step, a question may come twice."""
    ids = [question.id for question in questions]
    return [f"again {name}" if name in ids[:i] else name for i, name in enumerate(ids)]


def as_evaluated(config: IGPOConfig) -> EvalConfig:
    """What eval.py would be told to ask the same questions with the same tools."""
    model = str(TINY_BASE) if config.model == "tiny-base" else config.model
    agent = AgentConfig(model=model, tools=config.tools, seed=config.seed, system_prompt=config.system_prompt,
                        max_turns=config.max_turns)
    return EvalConfig(questions=None if config.data == "toyweb" else config.data, agent=agent)


def shown(numbers: dict, timing: dict) -> dict:
    """The progress line: the health of the step, and a batch that was no update."""
    every = numbers | timing
    line = {name: float(every[key]) for name, key in SHOWN.items() if key in every}
    return line if numbers["updates"] else line | {"updates": 0.0}


if __name__ == "__main__":
    try:
        wanted = parse_flags(IGPOConfig, description=__doc__, presets=IGPO_PRESETS)
        print(f"model: {main(wanted)}\nreport: {write_run_page(wanted.out)}")
    except KeyboardInterrupt:
        print("\ntrain_igpo.py: stopped at once; the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)
    except (ValueError, OSError, *STOPS) as error:
        print(f"\ntrain_igpo.py: {error}", file=sys.stderr)
        sys.exit(2)
