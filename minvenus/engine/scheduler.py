"""The scheduler: which sequences run in the next step, with how many tokens. Pure Python over the page pool, no
tensors.

Every sequence that only waits for its next token gets one (decode), and up to `step_tokens` further tokens are
prefilled. The sequence that was prefilled least recently comes first, so a long prompt is cut into chunks and no other
sequence waits for longer than one of them.

When the pages run out, the youngest sequence is preempted: it loses its pages, keeps its tokens, and is computed
again when there is room. A running sequence never loses its pages to a younger one; an idle one (between two turns)
may lose them to any other. So the oldest running sequence can take every page, and the work always goes on: when
a turn starts, the engine checks that the sequence fits alone.
"""

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from minvenus.engine.pages import PagePool
from minvenus.engine.sampler import Noise, Sampling


@dataclass
class Completion:
    """One turn as it was sampled."""

    tokens: list[int]            # with the stop id, if one was drawn
    logprobs: list[float]        # plain softmax at the sampling temperature


@dataclass(eq=False, slots=True)
class Job:
    """Compute a sequence's tokens up to the goal, and use the hidden states of those from `output_from` on.

    turn       draw a token from the last hidden state; every token drawn moves goal and output_from by one
    scoring    take the log-prob of the token after each hidden state
    prefill    a scoring of nothing: output_from is the goal
    """

    goal: int
    output_from: int
    sampling: Sampling | None = None                         # of a turn
    begin: int = 0                                           # of a turn: tokens before it
    temperature: float = 1.0                                 # of a scoring
    source: Any = None                                       # of a scoring: Sequence that has the tokens before it


@dataclass(eq=False, slots=True)
class Sequence:
    """One append-only list of tokens. Without a block table it is complete, too: it is computed again for its next
    job."""

    number: int                                              # order of opening: smaller is older
    tokens: list[int]
    question: int | str                                      # (seed, step, question, rollout) name the random numbers
    rollout: int
    step: int | None                                         # of training
    noise: Noise
    block_table: Any = None                                  # BlockTable; None = nothing is computed
    job: Any = None                                          # Job; None = idle
    logprobs: list[float] = field(default_factory=list)      # of all tokens that were drawn, or scored
    prefilled_at: int = -1                                   # last step in which it was prefilled

    @property
    def num_computed(self) -> int:
        return self.block_table.num_computed if self.block_table else 0

    @property
    def written(self) -> list[int]:
        """The tokens so far of the turn that runs."""
        return self.tokens[self.job.begin:]

    @property
    def decoding(self) -> bool:
        """One token is missing before the next draw."""
        job, table = self.job, self.block_table
        return bool(job and job.sampling and table) and table.num_computed + 1 == job.goal

    def outputs(self, count: int) -> int:
        """How many of the next `count` tokens, always the last ones, give a hidden state that the job uses."""
        start = self.num_computed
        return max(0, start + count - max(start, self.job.output_from))

    def add(self, token: int, logprob: float) -> None:
        """A token that its turn has drawn. The job ends with a stop id, or at max_tokens."""
        job = self.job
        self.tokens.append(token)
        self.logprobs.append(logprob)
        job.goal += 1
        job.output_from += 1
        if token in job.sampling.stop_ids or len(self.tokens) - job.begin == job.sampling.max_tokens:
            self.job = None


@dataclass
class Counters:
    """The work of an engine since the last reset, in tokens."""

    prefilled: int = 0                                       # given, or computed again after a preemption
    decoded: int = 0                                         # computed one by one, to draw the next token
    scored: int = 0                                          # computed to score the token after them
    shared: int = 0                                          # not computed, because their pages were there
    preemptions: int = 0
    pages_peak: int = 0                                      # most pages held in a step

    @property
    def rolled_out(self) -> int:
        return self.prefilled + self.decoded


class Work(NamedTuple):
    """Compute the next `new` tokens of a sequence, after copying these (from, to) pages."""

    sequence: Sequence
    new: int
    copies: list[tuple[int, int]]


class Scheduler:
    def __init__(self, pool: PagePool, step_tokens: int):
        if step_tokens < 1:
            raise ValueError(f"a step needs at least one token, got step_tokens {step_tokens}")
        self.pool, self.step_tokens = pool, step_tokens
        self.sequences: list[Sequence] = []                  # all that are open, the oldest first
        self.counters = Counters()
        self._step = 0

    def running(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences if sequence.job]

    def free(self, sequence: Sequence) -> None:
        """Give its pages back; its tokens stay."""
        if sequence.block_table:
            self.pool.free(sequence.block_table)
            sequence.block_table = None

    def schedule(self) -> list[Work]:
        """The next step of the running sequences, of which there must be one. The oldest always gets work, unless
        others have used up the tokens of the step."""
        self._step += 1
        plan: dict[Sequence, Work] = {}
        running, prefills = self.running(), []
        for sequence in running:
            if sequence.decoding:
                self._place(sequence, 1, plan)
            else:
                prefills.append(sequence)
        budget, room = self.step_tokens, True
        for sequence in sorted(prefills, key=attrgetter("prefilled_at")):          # of equal ones the oldest first
            oldest = sequence is running[0]
            if sequence.block_table is None and (room or oldest):
                room = self._admit(sequence, must_run=oldest)
            if sequence.block_table:
                budget -= self._place(sequence, min(sequence.job.goal - sequence.num_computed, budget), plan)
                sequence.prefilled_at = self._step
            if budget == 0:
                break
        for sequence, new, _ in plan.values():
            scored = 0 if sequence.job.sampling else sequence.outputs(new)
            self.counters.scored += scored
            if sequence.decoding:
                self.counters.decoded += new
            else:
                self.counters.prefilled += new - scored
        self.counters.pages_peak = max(self.counters.pages_peak, self.pool.used)
        return list(plan.values())

    def _admit(self, sequence: Sequence, must_run: bool) -> bool:
        """Give the sequence a block table with what the cache has of it; at least one token is left to run. Unless it
        must run, all other pages that it needs have to be free: a start that is soon preempted is lost work."""
        job, source = sequence.job, sequence.job.source
        known = min(job.output_from, job.goal - 1)
        if source and source.block_table:                    # prefilled before; it loses its pages only as a whole
            table = self.pool.fork(source.block_table, known)
        else:
            table = self.pool.open(sequence.tokens[:known + 1])
        needed = self.pool.pages_for(job.goal) - len(table.pages) + (table.num_computed % self.pool.page_size > 0)
        if self.pool.used + needed > self.pool.count and not must_run:
            self.pool.free(table)
            return False
        sequence.block_table = table
        self.counters.shared += table.num_computed
        return True

    def _place(self, sequence: Sequence, count: int, plan: dict[Sequence, Work]) -> int:
        """Put `count` tokens of the sequence into the plan and preempt others if need be. Returns 0 if the sequence has
        to wait itself: nobody with pages is idle or younger."""
        while (copies := self.pool.extend(sequence.block_table, count)) is None:
            holders = (s for s in reversed(self.sequences) if s.block_table and s.block_table.pages)
            victim = next((s for s in holders if s.job is None or s.number > sequence.number), None)
            if victim is None:
                return 0
            plan.pop(victim, None)
            self.free(victim)
            if victim.job and victim.job.source:             # a scoring begins again
                victim.logprobs.clear()
            self.counters.preemptions += 1
        plan[sequence] = Work(sequence, count, copies)
        return count
