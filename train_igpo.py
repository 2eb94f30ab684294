"""Stage two: reinforcement learning with IGPO.   python train_igpo.py --help"""

import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch

from minvenus.agent.episode import Budget
from minvenus.agent.policy import EnginePolicy
from minvenus.agent.prompt import Notices
from minvenus.agent.protocol import final_answer
from minvenus.agent.rollout import open_rollouts, rollouts
from minvenus.config import ConfigError, ModelConfig, Recipe
from minvenus.engine import Engine, Sampling
from minvenus.engine.score_packed import score_packed
from minvenus.flags import parse_flags, save_config
from minvenus.igpo.credit import Measured, credit
from minvenus.igpo.gain import answer_logprobs, scored_lengths, wrap_answer
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.report.terminal import Progress
from minvenus.scoring.answers import exact_match, f1
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_teachers import LEAD_IN, SYSTEM
from minvenus.train import checkpoint, metrics, saved
from minvenus.train.data import batch_indices
from minvenus.train.igpo import all_logprobs, backward, trained
from minvenus.train.igpo_config import IGPO_PRESETS, IGPOConfig
from minvenus.train.optim import Diverged, adamw, optimiser_step
from minvenus.train.signals import stop_on_signals


def main(config: IGPOConfig) -> Path:
    """Train, and return the folder of the trained model."""
    run = Path(config.out)
    newest = checkpoint.latest(run)
    if newest and config.resume == "never":
        raise ConfigError(f"{run} holds a run already: choose another --out, remove it, or go on with --resume auto")
    job = Job(config)
    start = checkpoint.restore(newest, job.model, job.optimizer, config)["step"] if newest else 0
    save_config(config, run)
    log, progress = metrics.Metrics(run, start), Progress("igpo", start, config.steps)
    with stop_on_signals() as stop:
        for step in range(start, config.steps):
            questions_Q = job.questions(step)
            collected, logprobs, timing = job.collect(questions_Q, step)
            measured, credited = job.credit(collected, logprobs)
            stats = job.update(collected, credited.record, step, timing)
            job.engine.weights_changed()                                # every cached page is stale now
            numbers = summarise(collected, credited.rewards, credited.record, stats)
            last = step + 1 == config.steps
            if last or step % config.rollouts_every == 0:
                saved.save_credits(saved.path_of(run, step), saved.SavedBatch(step, config.gain_policy, job.recipe, collected,
                                                                              measured, credited))
            if last or (step + 1) % config.evaluate_every == 0:
                numbers["accuracy"] = job.evaluate()
            log.log(step, numbers, timing)
            progress.show(step, {k: numbers[k] for k in ("outcome", "gain_mean", "turns", "accuracy") if k in numbers}, timing)
            stopping = bool(stop)                                       # read once: a signal may come at any moment
            if last or stopping or (step + 1) % config.save_every == 0:
                log.sync()
                newest = checkpoint.save(run, step + 1, job.model, job.optimizer, {"config": asdict(config)}, job.tokenizer.files)
            if stopping and not last:
                progress.end()
                print(f"stopped after step {step + 1} of {config.steps}; the same command goes on from there")
                break
    return newest / "model"


class Job:
    """The parts that a run is made of, and the four steps of a batch: collect, credit, update, evaluate."""

    def __init__(self, config: IGPOConfig):
        self.config = config
        device = ("cuda" if torch.cuda.is_available() else "cpu") if config.device == "auto" else config.device
        torch.manual_seed(config.seed)              # nothing draws from it, but its state is part of every checkpoint
        self.model, self.tokenizer = start_model(config.model, device, config.seed)
        self.reference = None                       # the frozen start checkpoint
        if config.kl_coef or config.gain_policy == "reference":
            self.reference = start_model(config.model, device, config.seed)[0].requires_grad_(False)
        self.optimizer = adamw(self.model, (0.9, 0.999), config.weight_decay)
        self.engine = Engine(self.model, config.pages, config.page_size, config.seed, vocab_limit=self.tokenizer.size)
        self.web = ToyWeb(config.seed, hops=(config.hops,), slack=config.slack, test=config.evaluate_questions)
        self.budget = Budget(config.max_turns, config.max_context, config.max_turn_tokens, tool_threads=0)
        # the scored answer begins as the answers of the demonstrations do, which is what the model has learned to write
        own = config.recipe.lead_in != Recipe().lead_in
        self.recipe = config.recipe if own else replace(config.recipe, lead_in=LEAD_IN)

    def questions(self, step: int):
        every = self.web.questions("train")
        return [every[i] for i in batch_indices(step, self.config.questions, len(every), self.config.seed)]

    def collect(self, questions_Q, step: int):
        """Rollouts of every question, and the log-probs that their gains need, scored on the pages that are still there."""
        start = time.perf_counter()
        sampling = Sampling(self.config.max_turn_tokens, self.config.temperature, top_p=self.config.top_p)
        policy = EnginePolicy(self.engine, self.tokenizer, sampling)
        with open_rollouts(policy, self.tokenizer, questions_Q, lambda q: self.web.for_question(q.id), self.budget,
                           n=self.config.group, names=[f"{step} {q.id}" for q in questions_Q], training=True, system=SYSTEM,
                           notices=Notices(last_turn=None), max_turns=lambda q: self.web.max_turns(q.id)) as finished_Q_G:
            finished = [f for group in finished_Q_G for f in group]
            sampled = time.perf_counter()
            logprobs = self.measure(finished)
        collected = [f.rollout for f in finished]
        scored = time.perf_counter()
        tokens = sum(len(r.tokens) for r in collected)
        return collected, logprobs, {"rollout_seconds": sampled - start, "scoring_seconds": scored - sampled, "tokens": tokens}

    def measure(self, finished) -> list[list[list[float] | None]]:
        """Per rollout and turn, the log-probs of the answer's tokens before it; all of all rollouts come out of one call."""
        wrapped = [wrap_answer(f.rollout.question.answers[0], self.tokenizer, self.recipe) for f in finished]
        requests = [(f.handle.sequence, scored_lengths(f.rollout, self.recipe), answer.ids)
                    for f, answer in zip(finished, wrapped, strict=True)]
        if self.config.gain_policy == "reference":
            scores = [score_packed(self.reference, f.rollout.tokens, lengths, [ids] * len(lengths), self.config.temperature)
                      if lengths else [] for f, (_, lengths, ids) in zip(finished, requests, strict=True)]
        else:
            answered = iter(self.engine.score_many([r for r in requests if r[1]], self.config.temperature))
            scores = [next(answered) if lengths else [] for _, lengths, _ in requests]
        return [answer_logprobs(f.rollout, answer, own, self.recipe)
                for f, answer, own in zip(finished, wrapped, scores, strict=True)]

    def credit(self, collected, logprobs):
        """Rewards and advantages; the group of a rollout is its question."""
        compare = exact_match if self.config.outcome == "em" else f1
        outcomes = [compare(final_answer(rollout.turns), rollout.question.answers) for rollout in collected]
        measured = [Measured.of(rollout, own, outcome, i // self.config.group)
                    for i, (rollout, own, outcome) in enumerate(zip(collected, logprobs, outcomes, strict=True))]
        return measured, credit(measured, self.recipe)

    def update(self, collected, record, step: int, timing: dict) -> dict:
        """Epochs of optimiser steps on the batch. A batch without any signal costs none."""
        start, config = time.perf_counter(), self.config
        if record.health["groups_without_any_signal"] == 1.0 and not config.kl_coef:
            timing |= {"update_seconds": 0.0, "tokens_per_second": 0.0}
            return {"updates": 0}
        rows = [trained(rollout, advantages) for rollout, advantages in zip(collected, record.advantages, strict=True)]
        ref_logp = all_logprobs(self.reference, rows, config.temperature, config.pack_tokens) if config.kl_coef else None
        stats: list[dict] = []
        for epoch in range(config.epochs):
            order = batch_indices(epoch, len(rows), len(rows), config.seed * 1_000_003 + step)
            for part in split(order, config.minibatches):
                numbers = backward(self.model, [rows[i] for i in part], [ref_logp[i] for i in part] if ref_logp else None,
                                   config.temperature, config.pack_tokens, clip_low=config.clip_low, clip_high=config.clip_high,
                                   dual_clip=config.dual_clip, kl_coef=config.kl_coef, aggregate=config.aggregate)
                if not stats and numbers["logprob_gap"] > config.logprob_gap:
                    raise Diverged(f"step {step}: new and stored log-probs differ by {numbers['logprob_gap']:.2g} before the "
                                   f"first update, more than {config.logprob_gap}: engine and trainer run different models")
                numbers["grad_norm"] = optimiser_step(self.model, self.optimizer, config.learning_rate, config.clip)
                stats.append(numbers)
        seconds = time.perf_counter() - start
        timing |= {"update_seconds": seconds, "tokens_per_second": timing["tokens"] / (seconds + timing["rollout_seconds"])}
        mean = {key: sum(s[key] for s in stats) / len(stats) for key in stats[0]}
        return mean | {"updates": len(stats), "logprob_gap": stats[0]["logprob_gap"]}

    def evaluate(self) -> float:
        """Accuracy on held-out questions, one sampled rollout each."""
        policy = EnginePolicy(self.engine, self.tokenizer, Sampling(self.config.max_turn_tokens, self.config.temperature))
        questions = self.web.questions("test")
        done = rollouts(policy, self.tokenizer, questions, lambda q: self.web.for_question(q.id), self.budget, system=SYSTEM,
                        notices=Notices(last_turn=None), max_turns=lambda q: self.web.max_turns(q.id))
        return sum(exact_match(final_answer(r.turns), r.question.answers) for [r] in done) / len(questions)


def start_model(model: str, device: str, seed: int) -> tuple[Qwen3, Tokenizer]:
    if model == "tiny":
        return Qwen3(ModelConfig.preset("tiny"), seed=seed).to(device), Tokenizer.tiny()
    return weights.load(model, device), Tokenizer.from_file(model)


def split(order: list[int], parts: int) -> list[list[int]]:
    return [order[len(order) * i // parts:len(order) * (i + 1) // parts] for i in range(parts)]


def summarise(collected, rewards, record, stats: dict) -> dict:
    gains = [v for r in rewards for v, penalty in zip(r.turns, r.is_penalty(), strict=True) if v is not None and not penalty]
    return {
        "outcome": sum(r.outcome for r in rewards) / len(rewards),
        "gain_mean": sum(gains) / len(gains) if gains else 0.0,
        "gain_positive": sum(v > 0 for v in gains) / len(gains) if gains else 0.0,
        "turns": sum(len(r.turns) for r in collected) / len(collected),
        "malformed": sum(t.malformed for r in collected for t in r.turns) / sum(len(r.turns) for r in collected),
        "scale": record.scale, **record.health, **stats,
    }


if __name__ == "__main__":
    try:
        print(f"model: {main(parse_flags(IGPOConfig, description=__doc__, presets=IGPO_PRESETS))}")
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError, Diverged) as error:
        print(f"train_igpo.py: {error}", file=sys.stderr)
        sys.exit(2)
