"""The rollout engine: sequences that live across turns, sampled and scored from one paged cache.

    step = schedule (which sequences run, with how many tokens) -> run (the model over pages) -> finish (draw, score)
           scheduler.py                                            runner.py                     here

One kind of step serves every job of a sequence:

    a turn    runs the tokens that are not computed yet and draws the next token from the last hidden state, again
              and again until the turn ends.
    scoring   log P(c_1 .. c_R | x_1 .. x_n) runs on a fork of x's pages at n - 1 tokens: the R tokens x_n c_1 ..
              c_{R-1}, whose hidden states each give the log-prob of the next token. It costs R tokens, not n + R.

Job(goal, output_from) says: compute the sequence's tokens up to `goal` and use the hidden states of those from
`output_from` on. A sequence without a job is idle. One that loses its pages to others (preemption) keeps its tokens and
is computed again. The engine knows no text: stop ids and the size of the vocabulary are numbers here.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from minvenus.config import ConfigError
from minvenus.engine.pages import PagePool
from minvenus.engine.runner import Runner
from minvenus.engine.sampler import Noise, Sampling, plain_logprobs, sample
from minvenus.engine.scheduler import Completion, Counters, Job, Scheduler, Sequence, Work
from minvenus.model.precision import fill

ScoreRequest = tuple[Sequence | list[int], list[int], list[int]]  # (prefix, lengths n to score after, continuation)


class Engine:
    """Rollouts of one model from one pool of pages.

    pages, page_size  the cache: pages * page_size tokens of all sequences together
    seed              of all sampling
    step_tokens       most tokens that are prefilled in one step
    vocab_limit       ids from here on are never drawn (the tokenizer's size, where the model's vocabulary is padded)
    draw              for tests: draw(sequences, logits [S, V]) -> one token for each, instead of sampling
    """

    def __init__(self, model, pages: int, page_size: int = 64, seed: int = 0, step_tokens: int = 4096,
                 vocab_limit: int | None = None, draw: Callable | None = None):
        self.config, self.seed = model.config, seed
        self.vocab_limit = self.config.vocab_size if vocab_limit is None else vocab_limit
        if not 1 <= self.vocab_limit <= self.config.vocab_size:
            raise ConfigError(f"the tokenizer has {vocab_limit} ids, the model {self.config.vocab_size}: they do not "
                              "belong together")
        self.pool = PagePool(pages, page_size)
        self.scheduler = Scheduler(self.pool, step_tokens)
        self.runner = Runner(model, pages, page_size)
        self._draw = draw or self._sample
        self._opened = 0                                               # sequences so far

    # ------------------------------------------------------------------------------------------- the life of a sequence

    def open(self, tokens: list[int], question: int | str = "", rollout: int = 0,
             step: int | None = None) -> Sequence:
        """A sequence that begins with `tokens`. The list stays the caller's: the engine appends what
        it draws to it, and the caller may append to it between two turns.
        (seed, step, question, rollout) decide its random numbers."""
        self._check_tokens(tokens)
        noise = Noise(self.seed, question, rollout, step)
        sequence = Sequence(self._opened, tokens, question, rollout, step, noise)
        self._opened += 1
        self.scheduler.sequences.append(sequence)
        return sequence

    def open_group(self, prompts: list[list[int]], question: int | str = "", rollout: int = 0,
                   step: int | None = None) -> list[Sequence]:
        """Sequences on shared pages, with rollout numbers from `rollout` on. `prompts` are equal, one
        list for each sequence: the prompt is computed once."""
        self._check_tokens(prompts[0])                       # before anything is opened that would stay open
        self._check_room(len(prompts[0]), 1)
        group = []
        for number, prompt in enumerate(prompts, start=rollout):
            group.append(self.open(prompt, question, number, step))

        first = group[0]
        if len(group) > 1:
            self._prefill([(first, len(first.tokens) - 1)])
        for sequence in group[1:]:
            if first.block_table:
                sequence.block_table = self.pool.fork(first.block_table, first.num_computed)
                self.scheduler.counters.shared += first.num_computed
        return group

    def close(self, sequence: Sequence) -> None:
        """Give the pages back. The next sequence with the same beginning still finds them, until they are reused."""
        self.scheduler.sequences.remove(sequence)
        sequence.job = None
        self.scheduler.free(sequence)

    def free_pages(self) -> None:
        """Drop everything that was computed, and the memory of the pages until the next step: a trainer can use it.
        Open sequences keep their tokens and are computed again."""
        running = len(self.scheduler.running())
        if running:
            raise RuntimeError(f"{running} sequences are running: free pages and change weights between turns")
        for sequence in self.scheduler.sequences:
            self.scheduler.free(sequence)
        self.pool.forget()
        self.runner.free_pages()

    def load_weights(self, model) -> None:
        """Take the weights that the model has now, drop all that was computed with others, and
        count the work from 0."""
        if self.runner.model is not model:
            fill(self.runner.model, model)
        self.free_pages()
        self.runner.forget_weights()
        self.scheduler.counters = Counters()

    # --------------------------------------------------------------------------------------------------------- sampling

    def start(self, sequence: Sequence, sampling: Sampling) -> None:
        """Begin a turn. It runs from the next step on, together with all others, and has ended when the sequence has no
        job any more."""
        self._check_idle(sequence)
        length = len(sequence.tokens)
        self._check_tokens(sequence.tokens[sequence.num_computed:])
        self._check_room(length, sampling.max_tokens)
        sequence.job = Job(goal=length, output_from=length - 1, sampling=sampling, begin=length)

    @torch.inference_mode()
    def step(self) -> None:
        """One step of everything that is running."""
        if self.scheduler.running():
            self._finish(*self.runner.run(self.scheduler.schedule()))

    def cut(self, sequence: Sequence) -> None:
        """End a running turn where it is. What was drawn so far stays in the sequence."""
        sequence.job = None

    def turn(self, sequences: list[Sequence], sampling: Sampling) -> list[Completion]:
        """One turn of each sequence, batched."""
        starts = [len(sequence.tokens) for sequence in sequences]
        for sequence in sequences:
            self.start(sequence, sampling)
        self._run(sequences)

        completions = []
        for sequence, start in zip(sequences, starts, strict=True):
            tokens = sequence.tokens[start:]
            completions.append(Completion(tokens, sequence.logprobs[-len(tokens):]))
        return completions

    def generate(self, prompts: list[list[int]], sampling: Sampling, n: int = 1) -> list[list[Completion]]:
        """n completions of every prompt."""
        if n < 1:
            raise ValueError(f"n must be at least 1 completion per prompt, got {n}")
        sequences: list[Sequence] = []
        try:
            for question, prompt in enumerate(prompts):
                copies = [list(prompt) for _ in range(n)]
                sequences += self.open_group(copies, question)
            completions = self.turn(sequences, sampling)
        finally:
            for sequence in sequences:
                self.close(sequence)
        return [completions[i:i + n] for i in range(0, len(completions), n)]

    # ---------------------------------------------------------------------------------------------------------- scoring

    def score(self, prefix: Sequence | list[int], continuations: list[list[int]],
              temperature: float = 1.0) -> list[list[float]]:
        """Log-probs of the tokens of each continuation after the prefix, under the plain softmax at the temperature."""
        lengths = [len(prefix.tokens if isinstance(prefix, Sequence) else prefix)]
        return [own for [own] in self.score_many([(prefix, lengths, c) for c in continuations], temperature)]

    def score_many(self, requests: list[ScoreRequest], temperature: float = 1.0) -> list[list[list[float]]]:
        """For each (prefix, lengths, continuation): for each n in lengths, the log-prob of every continuation token
        after the first n tokens of the prefix. All requests run in one batch; equal ones, such as a group's prompt,
        run once."""
        for request in requests:
            self._check_request(*request)
        opened: dict[tuple, Sequence] = {}                             # for the time of this call
        scorings: list[list[Sequence]] = []                            # by request and length
        try:
            # the prefixes, open sequences or opened here, computed as far as the longest of their lengths needs
            sources = [prefix if isinstance(prefix, Sequence) else self._open_once(opened, 0, prefix)
                       for prefix, _, _ in requests]
            self._prefill((source, max(lengths) - 1) for source, (_, lengths, _) in zip(sources, requests, strict=True))
            # for each length a sequence with the continuation, which starts on a fork of its source's pages
            for source, (_, lengths, continuation) in zip(sources, requests, strict=True):
                scorings.append([self._open_once(opened, n, source.tokens[:n] + continuation) for n in lengths])
                for n, scoring in zip(lengths, scorings[-1], strict=True):
                    scoring.job = Job(goal=len(scoring.tokens) - 1, output_from=n - 1, temperature=temperature,
                                      source=source)
            self._run(opened.values())
            return [[list(scoring.logprobs) for scoring in own] for own in scorings]
        finally:
            for sequence in opened.values():
                self.close(sequence)

    def _open_once(self, opened: dict[tuple, Sequence], n: int, tokens: list[int]) -> Sequence:
        """A sequence of these tokens, scored from token n on (0 = a prefix): opened once per call of score_many."""
        if (n, *tokens) not in opened:
            opened[n, *tokens] = self.open(tokens)
        return opened[n, *tokens]

    # ---------------------------------------------------------------------------------------------------------- running

    def _prefill(self, goals: Iterable[tuple[Sequence, int]]) -> None:
        """Compute the first tokens of each sequence, as many as its goal, unless they are computed already."""
        started = set()
        for sequence, goal in goals:
            if goal > (sequence.job.goal if sequence.job else sequence.num_computed):
                sequence.job = Job(goal, output_from=goal)                 # uses no hidden state
                started.add(sequence)
        self._run(started)

    def _run(self, sequences: Iterable[Sequence]) -> None:
        """Step until none of the sequences has a job."""
        while any(sequence.job for sequence in sequences):
            self.step()

    def _finish(self, work: list[Work], hidden: Tensor) -> None:
        """Commit the tokens that ran; draw and score from the hidden states, [M, hidden] in the order of the work."""
        drawing: dict[Sequence, int] = {}                              # sequence -> its row of hidden
        scoring: list[tuple[int, int, list[float]]] = []               # (row, target, log-probs so far)
        row, temperature = 0, 1.0
        for sequence, new, _ in work:
            job, end = sequence.job, sequence.num_computed + new
            for i in range(end - sequence.outputs(new), end):          # the tokens whose hidden states the job uses
                if job.sampling:
                    drawing[sequence] = row
                else:
                    scoring.append((row, sequence.tokens[i + 1], sequence.logprobs))
                    temperature = job.temperature                      # the same for all: one score_many at a time
                row += 1
            self.pool.commit(sequence.block_table, sequence.tokens, new)
            if not job.sampling and end == job.goal:
                sequence.job = None
                if job.source:                                     # a scored fork: others wait for its pages
                    self.scheduler.free(sequence)
        if scoring:
            rows, targets, episode_logprobs = map(list, zip(*scoring, strict=True))
            scores = self.runner.logprobs(hidden[rows], targets, temperature)
            for logprobs, score in zip(episode_logprobs, scores, strict=True):
                logprobs.append(score)
        if drawing:
            self._draw_tokens(list(drawing), hidden[list(drawing.values())] if scoring else hidden)

    def _draw_tokens(self, sequences: list[Sequence], hidden: Tensor) -> None:
        """One token for each sequence; those with the same distribution settings are drawn together."""
        logits = self.runner.logits(hidden)                            # [S, V]
        alike: dict[tuple, list[int]] = defaultdict(list)
        for row, sequence in enumerate(sequences):
            alike[sequence.job.sampling.distribution].append(row)
        for rows in alike.values():
            members = [sequences[row] for row in rows]
            own = logits if len(alike) == 1 else logits[rows]
            tokens = self._draw(members, own)
            logprobs = plain_logprobs(own, tokens, members[0].job.sampling.plain_temperature)
            for sequence, token, logprob in zip(members, tokens, logprobs, strict=True):
                sequence.add(token, logprob)

    def _sample(self, sequences: list[Sequence], logits: Tensor) -> list[int]:
        sampling = sequences[0].job.sampling
        noise = [s.noise.draw() for s in sequences] if sampling.temperature else []
        return sample(logits, sampling, noise, self.vocab_limit, written=[s.written for s in sequences])

    # ---------------------------------------------------------------------------------------------- counters and checks

    def counters(self) -> Counters:
        return replace(self.scheduler.counters)                       # a copy

    def _check_request(self, prefix: Sequence | list[int], lengths: list[int], continuation: list[int]) -> None:
        if isinstance(prefix, Sequence):
            self._check_idle(prefix)
            prefix = prefix.tokens
        if not lengths or not 1 <= min(lengths) <= max(lengths) <= len(prefix):
            raise ValueError(f"lengths of prefixes must lie in 1 to {len(prefix)}, the number of tokens; got {lengths}")
        self._check_tokens(continuation)
        self._check_room(max(lengths), len(continuation))

    def _check_idle(self, sequence: Sequence) -> None:
        if sequence not in self.scheduler.sequences:
            raise ValueError(f"sequence {sequence.number} is closed")
        if sequence.job:
            raise ValueError(f"sequence {sequence.number} is running: wait until its turn has ended")

    def _check_tokens(self, tokens: list[int]) -> None:
        if not tokens or min(tokens) < 0 or max(tokens) >= self.config.vocab_size:
            raise ValueError(f"need at least one token, all in 0 to {self.config.vocab_size - 1}; got {len(tokens)}, "
                             f"from {min(tokens, default=None)} to {max(tokens, default=None)}")

    def _check_room(self, length: int, more: int) -> None:
        """Refuse what could never run, not even alone."""
        limit = self.config.max_position_embeddings
        if length + more > limit:
            raise ValueError(f"{length} tokens and up to {more} more are {length + more}, the model has room for "
                             f"{limit} (max_position_embeddings): lower max_tokens or shorten the sequence")
        needed = self.pool.pages_for(length + more - 1)               # the last token is never run
        if needed > self.pool.count:
            raise ValueError(f"need {needed} pages of {self.pool.page_size} for {length} tokens and up to {more} more, "
                             f"the pool has {self.pool.count}: raise pages or lower max_tokens")
