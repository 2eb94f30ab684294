"""What an engine has computed, in tokens."""

from collections.abc import Iterable
from dataclasses import dataclass


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

    def add(self, work: Iterable, pages_used: int) -> None:
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
