"""The rollout engine: sequences that live across turns, sampled and scored from one paged cache.

    step = schedule  which sequences run, with how many tokens      scheduler.py
           run       the model over pages                           runner.py
           finish    draw tokens, take log-probs                    here

One kind of step serves every job of a sequence:

    a turn    runs the tokens that are not computed yet and draws the next token from the last
              hidden state, again and again until the turn ends.
    scoring   log P(c_1 .. c_R | x_1 .. x_n) runs on a fork of x's pages at n - 1 tokens: the R
              tokens x_n c_1 .. c_{R-1}, whose hidden states each give the log-prob of the next
              token. It costs R tokens, not n + R.

The life of a sequence's pages: the prompt is computed once for a group, and each rollout forks it;
a shared page is copied before it is written. A turn adds a token at a time. An observation is
appended to the tokens, and computed with the next turn. While the sequence is open, truths are
scored on forks of its pages. Closing it frees them. New weights drop all pages.

A sequence without a job is idle. One that loses its pages to others (preemption) keeps its tokens
and is computed again. The engine handles ids, no text.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from minvenus.config import ConfigError
from minvenus.engine.checks import check_idle, check_request, check_room, check_tokens
from minvenus.engine.pages import PagePool
from minvenus.engine.runner import Runner
from minvenus.engine.sampler import Completion, Noise, Sampler, Sampling, select
from minvenus.engine.scheduler import Counters, Job, Scheduler, Sequence, uses
from minvenus.model.precision import fill

Tokens = list[int]
ScoreRequest = tuple[Sequence | Tokens, list[int], Tokens]      # prefix, lengths, continuation


class Engine:
    """Rollouts of one model from one pool of pages.

    pages, page_size  the cache: pages * page_size tokens of all sequences together
    seed              of all sampling
    step_tokens       most tokens that are prefilled in one step
    vocab_limit       ids from here on are never drawn: the tokenizer's size if the model has more
    """

    def __init__(self, model, pages: int, page_size: int = 64, seed: int = 0,
                 step_tokens: int = 4096, vocab_limit: int | None = None):
        self.config = model.config
        self.seed = seed
        size = self.config.vocab_size
        if vocab_limit is not None and not 1 <= vocab_limit <= size:
            raise ConfigError(f"the tokenizer has {vocab_limit} ids, the model {size}: they do not "
                              "belong together")
        self.pool = PagePool(pages, page_size)
        self.scheduler = Scheduler(self.pool, step_tokens)
        self.runner = Runner(model, pages, page_size)
        self.sampler = Sampler(vocab_limit or size)
        self._opened = 0                                 # sequences so far

    # ----------------------------------------------------------------------- the life of a sequence

    def open(self, tokens: Tokens, question: int | str = "", rollout: int = 0,
             step: int | None = None) -> Sequence:
        """A sequence that begins with `tokens`. The list stays the caller's: the engine appends
        what it draws, and the caller may append to it between two turns, such as an observation.
        (seed, step, question, rollout) decide the random numbers."""
        check_tokens(self, tokens)
        noise = Noise(self.seed, question, rollout, step)
        sequence = Sequence(self._opened, tokens, question, rollout, step, noise)
        self._opened += 1
        self.scheduler.sequences.append(sequence)
        return sequence

    def open_group(self, prompts: list[Tokens], question: int | str = "", rollout: int = 0,
                   step: int | None = None) -> list[Sequence]:
        """Sequences on shared pages, with rollout numbers from `rollout` on. `prompts` has an equal
        list for each of them: the prompt is computed once, but for its last token."""
        length = len(prompts[0])
        check_room(self, length, 1)                      # before any is opened
        group = []
        for number, prompt in enumerate(prompts, start=rollout):
            group.append(self.open(prompt, question, number, step))
        first, *others = group
        if others and length > 1:
            self._prefill([(first, length - 1)])
            for sequence in others:
                sequence.block_table = self.pool.fork(first.block_table, length - 1)
            self.scheduler.counters.shared += len(others) * (length - 1)
        return group

    def close(self, sequence: Sequence) -> None:
        """Give the pages back. They can still be found by their tokens, until they are reused."""
        self.scheduler.sequences.remove(sequence)
        sequence.job = None
        self.scheduler.free(sequence)

    def free_pages(self) -> None:
        """Drop everything that was computed, and the memory of the pages until the next step: a
        trainer can use it. Open sequences keep their tokens and are computed again."""
        running = len(self.scheduler.running())
        if running:
            raise RuntimeError(f"{running} sequences are running: change weights between turns")
        for sequence in self.scheduler.sequences:
            self.scheduler.free(sequence)
        self.pool.clear_index()
        self.runner.free_pages()

    def load_weights(self, model) -> None:
        """Take the model's weights, drop all that was computed with others, count from 0."""
        if self.runner.model is not model:
            fill(self.runner.model, model)
        self.free_pages()
        self.runner.forget_weights()
        self.scheduler.counters = Counters()

    def counters(self) -> Counters:
        """What was counted since the weights were loaded."""
        return replace(self.scheduler.counters)

    # ------------------------------------------------------------------------------------- sampling

    def start(self, sequence: Sequence, sampling: Sampling) -> None:
        """Begin a turn. It has ended when the sequence has no job any more."""
        check_idle(self, sequence)
        check_tokens(self, sequence.tokens[sequence.num_computed:])
        length = len(sequence.tokens)
        check_room(self, length, sampling.max_tokens)
        sequence.turn_start = length
        sequence.job = Job(length, output_from=length - 1, sampling=sampling)

    @torch.inference_mode()
    def step(self) -> None:
        """One step of everything that is running."""
        if not self.scheduler.running():
            return
        with self.runner.threads():
            work, hidden, targets = self.runner.run(self.scheduler.schedule())
            drawing, scoring = uses(work)
            if scoring:
                self._score(scoring, hidden, targets)
            for sequence, new, _ in work:
                self._commit(sequence, new)
            if drawing:
                logits = self.runner.logits(select(hidden, [*drawing]))
                self.sampler.draw([*drawing.values()], logits)

    def turn(self, sequences: list[Sequence], sampling: Sampling) -> list[Completion]:
        """One turn of each sequence, batched."""
        for sequence in sequences:
            self.start(sequence, sampling)
        self._run(sequences)
        return [sequence.completion() for sequence in sequences]

    def generate(self, prompts: list[Tokens], sampling: Sampling,
                 n: int = 1) -> list[list[Completion]]:
        """n completions of every prompt."""
        if n < 1:
            raise ValueError(f"n must be at least 1 completion per prompt, got {n}")
        sequences: list[Sequence] = []
        try:
            for question, prompt in enumerate(prompts):
                check_tokens(self, prompt)
                sequences += self.open_group([list(prompt) for _ in range(n)], question)
            completions = self.turn(sequences, sampling)
        finally:
            for sequence in sequences:
                self.close(sequence)
        return [completions[i:i + n] for i in range(0, len(completions), n)]

    # -------------------------------------------------------------------------------------- scoring

    def score(self, prefix: Sequence | Tokens, continuations: list[Tokens],
              temperature: float = 1.0) -> list[list[float]]:
        """Log-probs of each continuation's tokens after the prefix: plain softmax."""
        length = len(prefix.tokens if isinstance(prefix, Sequence) else prefix)
        requests = [(prefix, [length], continuation) for continuation in continuations]
        return [logprobs for [logprobs] in self.score_many(requests, temperature)]

    def score_many(self, requests: list[ScoreRequest],
                   temperature: float = 1.0) -> list[list[list[float]]]:
        """For each (prefix, lengths, continuation): for each n in lengths, the log-prob of every
        continuation token after the first n tokens of the prefix. All requests run in one batch;
        equal ones, such as a group's prompt, run once."""
        for request in requests:
            check_request(self, *request)
        opened: dict[tuple, Sequence] = {}               # for the time of this call
        scorings = []                                    # by request and length
        try:
            # compute every prefix as far as the longest of its lengths needs
            goals = []
            for prefix, lengths, _ in requests:
                if not isinstance(prefix, Sequence):
                    prefix = self._open_once(opened, 0, prefix)
                goals.append((prefix, max(lengths) - 1))
            self._prefill(goals)

            # score the continuation after each length, on a fork of its prefix's pages
            for (source, _), (_, lengths, continuation) in zip(goals, requests, strict=True):
                forks = []
                for n in lengths:
                    fork = self._open_once(opened, n, source.tokens[:n] + continuation)
                    fork.job = Job(len(fork.tokens) - 1, output_from=n - 1, source=source,
                                   temperature=temperature)
                    forks.append(fork)
                scorings.append(forks)
            self._run(opened.values())
            return [[list(fork.logprobs) for fork in forks] for forks in scorings]
        finally:
            for sequence in opened.values():
                self.close(sequence)

    def _open_once(self, opened: dict[tuple, Sequence], n: int, tokens: Tokens) -> Sequence:
        """A sequence of these tokens that is scored from token n on; 0 = a prefix."""
        key = (n, *tokens)
        if key not in opened:
            opened[key] = self.open(tokens)
        return opened[key]

    # -------------------------------------------------------------------------------------- running

    def _prefill(self, goals: list[tuple[Sequence, int]]) -> None:
        """Compute the first tokens of each sequence, as many as the largest of its goals."""
        started = []
        for sequence, goal in goals:
            known = sequence.job.goal if sequence.job else sequence.num_computed
            if goal > known:
                sequence.job = Job(goal, output_from=goal)
                started.append(sequence)
        self._run(started)

    def _run(self, sequences: Iterable[Sequence]) -> None:
        """Step until none of the sequences has a job."""
        while any(sequence.job for sequence in sequences):
            self.step()

    def _score(self, scoring: dict[int, Sequence], hidden: Tensor, targets: Tensor) -> None:
        """Take the log-probs of the targets, which come after these rows of hidden."""
        temperature = next(iter(scoring.values())).job.temperature       # the same for all
        logprobs = self.runner.logprobs(select(hidden, [*scoring]), targets, temperature)
        for sequence, logprob in zip(scoring.values(), logprobs, strict=True):
            sequence.logprobs.append(logprob)

    def _commit(self, sequence: Sequence, new: int) -> None:
        """`new` more tokens of the sequence are computed. End its job if that was all of it."""
        self.pool.commit(sequence.block_table, sequence.tokens, new)
        job = sequence.job
        if not job.sampling and sequence.num_computed == job.goal:
            sequence.job = None
            if job.source:                               # other forks may need its pages
                self.scheduler.free(sequence)
