"""One step of the engine: schedule, run, finish. Finishing draws the next tokens and collects the log-probs that were asked for.

What a job wants from the hidden states of the tokens that were run:
    Turn      the last one, once every token of the sequence is computed: the next token is drawn from it
    Scoring   those from `first` on: each gives the log-prob of the token behind it
    Prefill   nothing
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from torch import Tensor

from minvenus.engine.runner import Runner
from minvenus.engine.sampler import plain_logprobs, sample
from minvenus.engine.scheduler import Scheduler, Work
from minvenus.engine.sequence import Completion, Scoring, Sequence, Turn

Draw = Callable[[list[Sequence], Tensor], list[int]]


def no_seconds() -> dict[str, float]:
    return dict.fromkeys(("schedule", "prefill", "decode", "score", "finish"), 0.0)


@dataclass
class Counters:
    """What an engine has done so far."""

    prefilled: int = 0                 # tokens computed because they were given, or lost by a preemption
    decoded: int = 0                   # tokens computed alone, to draw the next one
    scored: int = 0                    # tokens computed to score continuations
    shared: int = 0                    # tokens that were not computed, because pages with them were there
    preemptions: int = 0
    pages_used: int = 0
    pages_peak: int = 0
    seconds: dict[str, float] = field(default_factory=no_seconds)      # the run of a mixed step is divided by tokens


class Stepper:
    def __init__(self, scheduler: Scheduler, runner: Runner, width: int, draw: Draw | None):
        self.scheduler, self.runner, self.width = scheduler, runner, width
        self.draw = draw or self._sample
        self._counters = Counters()

    @torch.inference_mode()
    def step(self) -> list[Sequence]:
        """Advance every running sequence that has room; returns those whose turn has ended. Other jobs end silently."""
        started = time.perf_counter()
        work = self.scheduler.schedule()
        assert work, "somebody always runs"
        scheduled = time.perf_counter()
        work, hidden = self.runner.run(work)                           # hidden [M, hidden]: of the tokens that are asked for
        ran = time.perf_counter()
        self._count(work, ran - scheduled)
        ended = self.finish(work, hidden)
        self._counters.seconds["schedule"] += scheduled - started
        self._counters.seconds["finish"] += time.perf_counter() - ran
        return ended

    def counters(self) -> Counters:
        pool = self.scheduler.pool
        return replace(self._counters, seconds=dict(self._counters.seconds), shared=self.scheduler.shared,
                       preemptions=self.scheduler.preemptions, pages_used=pool.used, pages_peak=pool.peak)

    def reset_counters(self) -> None:
        self._counters = Counters()
        self.scheduler.shared = self.scheduler.preemptions = 0
        self.scheduler.pool.peak = self.scheduler.pool.used

    def finish(self, work: list[Work], hidden: Tensor) -> list[Sequence]:
        drawing, drawing_rows = [], []                                 # sequences that get a token, and their rows of hidden
        scoring: dict[float, list] = defaultdict(list)                 # temperature -> (job, its first row, targets)
        at, done, ended, commit = 0, [], [], self.scheduler.pool.commit
        for sequence, count, _ in work:
            job, asked = sequence.job, sequence.asked(count)
            commit(sequence.table, sequence.tokens, count)
            end = sequence.table.length
            if type(job) is Turn:
                if asked:
                    drawing.append(sequence)
                    drawing_rows.append(at)
            else:
                if type(job) is Scoring and asked:                     # else its prefix is being computed again
                    scoring[job.temperature].append((job, at, sequence.tokens[end - asked + 1:end + 1]))
                if end == sequence.goal:
                    done.append(sequence)
            at += asked
        for temperature, jobs in scoring.items():
            self._score(jobs, hidden, temperature)
        if drawing:
            ended = self._draw(drawing, hidden if len(drawing) == at else hidden[drawing_rows])
        for sequence in done + ended:
            sequence.job = None
            self.scheduler.running.discard(sequence)
        return ended

    def _score(self, jobs: list[tuple[Scoring, int, list[int]]], hidden: Tensor, temperature: float) -> None:
        rows = [row for _, first, targets in jobs for row in range(first, first + len(targets))]
        wanted = [target for _, _, targets in jobs for target in targets]
        logprobs = iter(self.runner.logprobs(hidden if len(rows) == len(hidden) else hidden[rows], wanted, temperature))
        for job, _, targets in jobs:
            job.logprobs += islice(logprobs, len(targets))

    def _draw(self, sequences: list[Sequence], hidden: Tensor) -> list[Sequence]:
        """A token for each sequence, drawn together where they are drawn alike; returns those whose turn has ended."""
        logits = self.runner.logits(hidden)                            # [B, V]
        alike = defaultdict(list)
        for row, sequence in enumerate(sequences):
            alike[sequence.job.sampling.distribution].append(row)
        ended = []
        for rows in alike.values():
            members = sequences if len(alike) == 1 else [sequences[row] for row in rows]
            own = logits if len(alike) == 1 else logits[rows]
            tokens = self.draw(members, own)
            logprobs = plain_logprobs(own, tokens, members[0].job.sampling.plain_temperature)
            ended += [s for s, token, logprob in zip(members, tokens, logprobs, strict=True) if write(s, token, logprob)]
        return ended

    def _sample(self, sequences: list[Sequence], logits: Tensor) -> list[int]:
        sampling = sequences[0].job.sampling
        noise = [s.noise.draw() for s in sequences] if sampling.temperature else []
        written = torch.stack([s.job.written for s in sequences]) if sampling.presence_penalty else None       # [B, V]
        return sample(logits, sampling, noise, self.width, written)

    def _count(self, work: list[Work], seconds: float) -> None:
        total = sum([count for _, count, _ in work])
        decoded = sum([count == 1 and type(s.job) is Turn and s.table.length + 1 == s.goal for s, count, _ in work])
        scored = sum(count for s, count, _ in work if type(s.job) is Scoring) if decoded < total else 0
        self._counters.decoded += decoded
        self._counters.scored += scored
        self._counters.prefilled += total - decoded - scored
        for phase, tokens in (("decode", decoded), ("score", scored), ("prefill", total - decoded - scored)):
            self._counters.seconds[phase] += seconds * tokens / total


def write(sequence: Sequence, token: int, logprob: float) -> bool:
    """Append a drawn token; True if it ends the turn."""
    turn = sequence.job
    sampling = turn.sampling
    sequence.tokens.append(token)
    turn.tokens.append(token)
    turn.logprobs.append(logprob)
    if turn.written is not None:
        turn.written[token] = 1.0
    stopped = token in sampling.stop_ids
    if stopped or len(turn.tokens) == sampling.max_tokens:
        sequence.completion = Completion(turn.tokens, turn.logprobs, token if stopped else None)
        return True
    sequence.goal += 1
    return False
