"""The scheduler: which sequences run in the next step, with how many tokens. No tensors here.

Every sequence that only waits for its next token gets one (decode), and up to `step_tokens` further
tokens are prefilled. The sequence that was prefilled least recently comes first, so a long prompt
is cut into chunks and no other sequence waits for longer than one of them.

When the pages run out, the youngest sequence is preempted: it loses its pages, keeps its tokens,
and is computed again when there is room. A running sequence never loses its pages to a younger one;
an idle one (between two turns) may lose them to any other. So the oldest running sequence can take
every page, and the work always goes on: when a turn starts, the engine checks that the sequence
fits alone.
"""

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from minvenus.engine.pages import PagePool
from minvenus.engine.sampler import Completion, Noise, Sampling


@dataclass(eq=False, slots=True)
class Job:
    """Compute a sequence's tokens up to the goal, and use the hidden states of those from
    `output_from` on.

    turn       draw a token from the last hidden state; every token moves goal and output_from on
    scoring    take the log-prob of the token after each hidden state
    prefill    uses no hidden state: output_from is the goal
    """

    goal: int
    output_from: int
    sampling: Sampling | None = None     # of a turn
    source: Any = None                   # of a scoring: the Sequence whose pages it starts on
    temperature: float = 1.0             # of a scoring


@dataclass(eq=False, slots=True)
class Sequence:
    """A list of tokens that only grows. It may have no pages: then it is computed again for its
    next job."""

    number: int                          # order of opening: smaller is older
    tokens: list[int]                    # the caller's own list; what is drawn is appended to it
    question: int | str                  # (seed, step, question, rollout) name the random numbers
    rollout: int
    step: int | None                     # of training
    noise: Noise
    logprobs: list[float] = field(default_factory=list)     # of all tokens drawn, or scored
    block_table: Any = None              # BlockTable; None = nothing is computed
    job: Any = None                      # Job; None = idle
    turn_start: int = 0                  # tokens before the newest turn
    prefilled_at: int = -1               # last step in which it was prefilled

    @property
    def num_computed(self) -> int:
        return self.block_table.num_computed if self.block_table else 0

    @property
    def written(self) -> list[int]:
        """The tokens of the newest turn, so far."""
        return self.tokens[self.turn_start:]

    def completion(self) -> Completion:
        """The newest turn, once it has ended."""
        return Completion(self.written, self.logprobs[-len(self.written):])

    @property
    def decoding(self) -> bool:
        """One token is missing before the next draw."""
        job, table = self.job, self.block_table
        return bool(job and job.sampling and table) and table.num_computed + 1 == job.goal

    def outputs(self, count: int) -> int:
        """How many of the next `count` tokens give a hidden state that the job uses. They are
        always the last ones."""
        start = self.num_computed
        return max(0, start + count - max(start, self.job.output_from))

    def add(self, token: int, logprob: float) -> None:
        """A token that its turn has drawn. The turn ends with a stop id, or at max_tokens."""
        job = self.job
        self.tokens.append(token)
        self.logprobs.append(logprob)
        job.goal += 1
        job.output_from += 1

        is_full = len(self.tokens) - self.turn_start == job.sampling.max_tokens
        if is_full or token in job.sampling.stop_ids:
            self.job = None


class Work(NamedTuple):
    """Compute the next `new` tokens of a sequence, after copying these (from, to) pages."""

    sequence: Sequence
    new: int
    copies: list[tuple[int, int]]


@dataclass
class Counters:
    """The work of an engine since it got its weights, in tokens."""

    prefilled: int = 0                   # of prompts, observations, and after preemptions
    decoded: int = 0                     # computed one by one, to draw the next token
    scored: int = 0                      # computed to score the token after them
    shared: int = 0                      # not computed, because their pages were there
    preemptions: int = 0
    pages_peak: int = 0                  # most pages held in a step

    @property
    def rolled_out(self) -> int:
        return self.prefilled + self.decoded

    def add(self, work: list[Work], pages_used: int) -> None:
        """Count the work of a step, before it runs."""
        for sequence, new, _ in work:
            if sequence.decoding:
                self.decoded += new
            elif sequence.job.sampling:
                self.prefilled += new
            else:
                scored = sequence.outputs(new)
                self.scored += scored
                self.prefilled += new - scored
        self.pages_peak = max(self.pages_peak, pages_used)


class Scheduler:
    def __init__(self, pool: PagePool, step_tokens: int):
        if step_tokens < 1:
            raise ValueError(f"a step needs at least one token, got step_tokens {step_tokens}")
        self.pool = pool
        self.step_tokens = step_tokens
        self.sequences: list[Sequence] = []              # all that are open, the oldest first
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
        """The next step of the running sequences, of which there must be one. The oldest can
        always get pages; it waits a step if others have used up the tokens of this one."""
        self._step += 1
        running = self.running()
        plan: dict[Sequence, Work] = {}
        prefills = []
        for sequence in running:
            if sequence.decoding:
                self._place(sequence, 1, plan)
            else:
                prefills.append(sequence)

        # of those that were prefilled in the same step the oldest comes first: sorting is stable
        prefills.sort(key=attrgetter("prefilled_at"))
        self._prefill(prefills, running[0], plan)
        work = list(plan.values())
        self.counters.add(work, self.pool.used)
        return work

    def _prefill(self, sequences: list[Sequence], oldest: Sequence,
                 plan: dict[Sequence, Work]) -> None:
        """Divide the tokens of a step among sequences, in their order. Once one of them finds no
        room, none after it is admitted, except the oldest."""
        budget = self.step_tokens
        room = True
        for sequence in sequences:
            is_oldest = sequence is oldest
            if sequence.block_table is None and (room or is_oldest):
                room = self._admit(sequence, must_run=is_oldest)
            if sequence.block_table:
                count = min(sequence.job.goal - sequence.num_computed, budget)
                budget -= self._place(sequence, count, plan)
                sequence.prefilled_at = self._step
            if budget == 0:
                return

    def _admit(self, sequence: Sequence, must_run: bool) -> bool:
        """Give the sequence a block table with what the cache has of it; at least one token is left
        to run. Unless it must run, all other pages that it needs have to be free: a start that is
        soon preempted is lost work."""
        pool, job = self.pool, sequence.job
        known = min(job.output_from, job.goal - 1)
        if job.source and job.source.block_table:
            # computed far enough: a source loses its pages only as a whole
            table = pool.fork(job.source.block_table, known)
        else:
            table = pool.open(sequence.tokens[:known + 1])

        needed = pool.pages_for(job.goal) - len(table.pages)
        if table.num_computed % pool.page_size > 0:
            needed += 1                                  # its last page is shared, and copied
        if pool.used + needed > pool.count and not must_run:
            pool.free(table)
            return False
        sequence.block_table = table
        self.counters.shared += table.num_computed
        return True

    def _place(self, sequence: Sequence, count: int, plan: dict[Sequence, Work]) -> int:
        """Put `count` tokens of the sequence into the plan and preempt others if need be. Returns 0
        if the sequence itself has to wait: no sequence with pages is idle or younger."""
        copies = self.pool.extend(sequence.block_table, count)
        while copies is None:
            victim = self._victim(sequence)
            if victim is None:
                return 0
            plan.pop(victim, None)
            self._preempt(victim)
            copies = self.pool.extend(sequence.block_table, count)
        plan[sequence] = Work(sequence, count, copies)
        return count

    def _victim(self, sequence: Sequence) -> Sequence | None:
        """The sequence to preempt for this one: the youngest that is idle, or younger than it."""
        for other in reversed(self.sequences):
            has_pages = other.block_table and other.block_table.pages
            if has_pages and (other.job is None or other.number > sequence.number):
                return other
        return None

    def _preempt(self, sequence: Sequence) -> None:
        self.free(sequence)
        self.counters.preemptions += 1
        if sequence.job and sequence.job.source:         # a scoring begins again
            sequence.logprobs.clear()


def uses(work: list[Work]) -> tuple[dict[int, Sequence], dict[int, Sequence]]:
    """The sequences that draw from the hidden states of a step, and those that are scored, by the
    row of each hidden state."""
    drawing: dict[int, Sequence] = {}
    scoring: dict[int, Sequence] = {}
    row = 0
    for sequence, new, _ in work:
        rows = range(row, row + sequence.outputs(new))
        users = drawing if sequence.job.sampling else scoring
        users.update(dict.fromkeys(rows, sequence))
        row = rows.stop
    return drawing, scoring
