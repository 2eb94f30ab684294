"""The rollout engine: sequences that live across turns, sampled and scored from one paged cache.

    step = schedule (who runs, with how many tokens) -> run (the model over pages) -> finish (draw tokens, keep log-probs)

One kind of step serves everything. A turn runs the tokens that are not computed yet and draws from what the last one gives.
Scoring log P(continuation | prefix) runs the prefix's last token and the continuation without its own last, on a fork of the
prefix's pages: as many tokens as the continuation has. Ids, stop ids and the size of the vocabulary are numbers here, not text.
"""

from collections.abc import Iterable

from minvenus.engine.pages import PagePool
from minvenus.engine.runner import Runner
from minvenus.engine.sampler import Noise, Sampling
from minvenus.engine.scheduler import Scheduler
from minvenus.engine.scoring import ScoreRequest, score_requests
from minvenus.engine.sequence import Completion, Prefill, Scoring, Sequence, Turn
from minvenus.engine.step import Counters, Draw, Stepper


class Engine:
    """Rollouts of one model from one pool of pages.

    pages, page_size  the cache: pages * page_size tokens, all sequences together
    seed              of all sampling
    step_tokens       prefilled tokens in one step at most
    vocab_limit       ids from here on are never drawn (the tokenizer's size, where the model's vocabulary is padded)
    draw              for tests: draw(sequences, logits [S, V]) -> a token for each, in place of sampling
    """

    def __init__(self, model, pages: int, page_size: int = 64, seed: int = 0, step_tokens: int = 4096,
                 vocab_limit: int | None = None, draw: Draw | None = None):
        self.config = model.config
        self.width = self.config.vocab_size if vocab_limit is None else vocab_limit
        if not 1 <= self.width <= self.config.vocab_size:
            raise ValueError(f"vocab_limit must lie in 1 to {self.config.vocab_size} (vocab_size), got {vocab_limit}")
        self.seed = seed
        self.pool = PagePool(pages, page_size)
        self.scheduler = Scheduler(self.pool, step_tokens)
        self.runner = Runner(model, pages, page_size)
        self.stepper = Stepper(self.scheduler, self.runner, self.width, draw)
        self._opened = 0                                               # sequences so far: the next one's number
        self._finished: list[Sequence] = []                            # turns that ended and that step() has not told yet

    # ------------------------------------------------------------------------------------------- the life of a sequence

    def open(self, tokens: list[int], question: int | str = "", rollout: int = 0, step: int | None = None) -> Sequence:
        """A sequence that begins with `tokens`; nothing is computed yet. (seed, step, question, rollout) name its random numbers."""
        self.check_tokens(tokens)
        return self.add(list(tokens), question, rollout, step)

    def open_groups(self, prompts: list[list[int]], n: int, questions: list[int | str] | None = None,
                    step: int | None = None) -> list[list[Sequence]]:
        """n rollouts of every prompt, on shared pages: each prompt is computed once."""
        questions = list(range(len(prompts))) if questions is None else questions
        for prompt in prompts:                                         # before anything is opened that would stay behind
            self.check_tokens(prompt)
            self.check_room(len(prompt), 1)
        first = [self.open(prompt, question, 0, step) for prompt, question in zip(prompts, questions, strict=True)]
        if n > 1:
            self.prefill(first)
        return [[s, *(self.fork(s, q, rollout, step) for rollout in range(1, n))] for s, q in zip(first, questions, strict=True)]

    def fork(self, sequence: Sequence, question: int | str, rollout: int, step: int | None = None) -> Sequence:
        """A second sequence with the same tokens, on the same pages, with its own sampling."""
        self.check_idle(sequence)
        copy = self.add(list(sequence.tokens), question, rollout, step)
        if sequence.table:
            copy.table = self.pool.fork(sequence.table)
            self.scheduler.shared += copy.table.length
        return copy

    def append(self, sequence: Sequence, tokens: list[int]) -> None:
        """Tokens from outside, such as an observation; they are computed with the next turn."""
        self.check_idle(sequence)
        self.check_tokens(tokens)
        sequence.tokens.extend(tokens)

    def close(self, sequence: Sequence) -> None:
        """Give the pages back. They can still be found by the next sequence that starts alike, until they are reused."""
        self._check_open(sequence)
        sequence.closed, sequence.job = True, None
        if sequence in self._finished:
            self._finished.remove(sequence)
        self.scheduler.running.discard(sequence)
        self.scheduler.sequences.discard(sequence)
        if sequence.table:
            self.pool.free(sequence.table)
            sequence.table = None

    def weights_changed(self) -> None:
        """Drop everything that was computed. Open sequences keep their tokens and are computed again with their next turn."""
        if self.scheduler.running:
            raise RuntimeError(f"{len(self.scheduler.running)} sequences are running: a turn has one policy, so change weights "
                               "between turns")
        for sequence in self.scheduler.sequences:
            if sequence.table:
                self.pool.free(sequence.table)
                sequence.table = None
        self.pool.forget()
        self.runner.forget()

    # --------------------------------------------------------------------------------------------------------- sampling

    def start(self, sequence: Sequence, sampling: Sampling) -> None:
        """Begin a turn: it joins the others that are running, from the next step on."""
        self.check_idle(sequence)
        self.check_room(len(sequence.tokens), sampling.max_tokens)
        sequence.completion = None
        written = self.runner.nothing_written() if sampling.presence_penalty else None
        self.run_job(sequence, Turn(sampling, written), len(sequence.tokens))

    def step(self) -> list[Sequence]:
        """One step for all that run; returns the sequences whose turn has ended (see `completion`)."""
        self._advance()
        finished, self._finished = self._finished, []
        return finished

    def turn(self, sequences: list[Sequence], sampling: Sampling) -> list[Completion]:
        """One turn of each, batched."""
        for sequence in sequences:
            self.start(sequence, sampling)
        self.advance_until_done(sequences)
        own = set(sequences)
        self._finished = [s for s in self._finished if s not in own]
        return [s.completion for s in sequences]

    def generate(self, prompts: list[list[int]], sampling: Sampling, n: int = 1,
                 questions: list[int | str] | None = None) -> list[list[Completion]]:
        """n completions of every prompt. `questions` names the prompts for the sampling; default: their places in the list."""
        if n < 1:
            raise ValueError(f"n must be at least 1 completion per prompt, got {n}")
        for prompt in prompts:
            self.check_room(len(prompt), sampling.max_tokens)
        groups = self.open_groups(prompts, n, questions)
        try:
            self.turn([s for group in groups for s in group], sampling)
            return [[s.completion for s in group] for group in groups]
        finally:
            for sequence in (s for group in groups for s in group):
                self.close(sequence)

    # ---------------------------------------------------------------------------------------------------------- scoring

    def prefill(self, sequences: Iterable[Sequence]) -> None:
        """Compute all tokens but the last, without drawing anything."""
        self.prefill_to([(s, len(s.tokens) - 1) for s in sequences])

    def score(self, prefix: Sequence | list[int], continuations: list[list[int]], temperature: float = 1.0) -> list[list[float]]:
        """Log-probs of the tokens of each continuation after the prefix, under the plain softmax at the temperature."""
        length = len(prefix.tokens if isinstance(prefix, Sequence) else prefix)
        return [scores for [scores] in self.score_many([(prefix, [length], c) for c in continuations], temperature)]

    def score_many(self, requests: list[ScoreRequest], temperature: float = 1.0) -> list[list[list[float]]]:
        """For each (prefix, lengths, continuation): for each n in lengths, the log-prob of every continuation token after the
        first n tokens of the prefix. All requests run in one batch; equal ones, such as a group's prompt, run once."""
        return score_requests(self, requests, temperature)

    def prefill_to(self, goals: list[tuple[Sequence, int]]) -> None:
        """Compute that many tokens of each sequence; what is there already is not computed again."""
        started = set()
        for sequence, goal in goals:
            if goal > max(sequence.goal if sequence in started else 0, sequence.table.length if sequence.table else 0):
                if sequence not in started:
                    self.check_idle(sequence)
                self.check_room(goal, 1)
                self.run_job(sequence, Prefill(), goal)
                started.add(sequence)
        self.advance_until_done(started)

    # ---------------------------------------------------------------------------------------------------------- running

    def add(self, tokens: list[int], question: int | str = "", rollout: int = 0, step: int | None = None) -> Sequence:
        noise = Noise(self.seed, question, rollout, step)
        sequence = Sequence(self._opened, tokens, question, rollout, step, noise)
        self._opened += 1
        self.scheduler.sequences.add(sequence)
        return sequence

    def run_job(self, sequence: Sequence, job: Turn | Scoring | Prefill, goal: int) -> None:
        sequence.job, sequence.goal = job, goal
        self.scheduler.running.add(sequence)

    def _advance(self) -> None:
        if self.scheduler.running:
            self._finished += self.stepper.step()

    def advance_until_done(self, sequences: Iterable[Sequence]) -> None:
        while any(s.job for s in sequences):
            self._advance()

    def counters(self) -> Counters:
        return self.stepper.counters()

    def reset_counters(self) -> None:
        self.stepper.reset_counters()

    # ----------------------------------------------------------------------------------------------------------- checks

    def _check_open(self, sequence: Sequence) -> None:
        if sequence.closed:
            raise ValueError(f"sequence {sequence.number} is closed")

    def check_idle(self, sequence: Sequence) -> None:
        self._check_open(sequence)
        if sequence.job:
            raise ValueError(f"sequence {sequence.number} is running: wait until its turn has ended")

    def check_tokens(self, tokens: list[int]) -> None:
        if not tokens or min(tokens) < 0 or max(tokens) >= self.config.vocab_size:
            raise ValueError(f"need at least one token, all in 0 to {self.config.vocab_size - 1} (vocab_size "
                             f"{self.config.vocab_size}); got {len(tokens)}, from {min(tokens, default=None)} to "
                             f"{max(tokens, default=None)}")

    def check_room(self, length: int, more: int) -> None:
        """Refuse what could never run, not even alone."""
        limit = self.config.max_position_embeddings
        if length + more > limit:
            raise ValueError(f"{length} tokens and up to {more} more are {length + more}, the model has room for {limit} "
                             "(max_position_embeddings): lower max_tokens or shorten the sequence")
        needed = self.pool.pages_for(length + more - 1)               # the last token is never run
        if needed > self.pool.count:
            raise ValueError(f"need {needed} pages of {self.pool.page_size} for {length} tokens and up to {more} more, the pool "
                             f"has {self.pool.count}: raise pages or lower max_tokens")
