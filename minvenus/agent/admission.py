"""Admission by room: which rollouts are open at a policy, and which wait.

A rollout that loses its pages to others is computed again from its first token, in every turn if all of them are open
at once. So rollouts are opened in their order, and only while the policy has room for all open ones at full length; one
alone always has. Each of them keeps its pages until it ends, however long its tools take, and then the next one
starts: none waits for ever. What is sampled does not depend on the room.
"""

import time
from collections.abc import Callable
from itertools import groupby

from minvenus.agent.episode import Episode


class Admission:
    """score(episodes), if given, is called with rollouts that have ended, while they are still open: with all of them
    when `close_ended` is called, or, once room is scarce, as they end."""

    def __init__(self, policy, max_context: int, score: Callable[[list[Episode]], None] | None):
        self.policy, self.max_context, self.score = policy, max_context, score
        self.waiting: list[Episode] = []
        self.open: list[Episode] = []                 # opened by the policy and not closed yet
        self.scarce = False                           # some have had to wait

    def open_waiting(self) -> None:
        """Open all that have room now."""
        while self.waiting:
            _, alike = next(groupby(self.waiting, lambda episode: (episode.name, episode.question)))
            group = list(alike)
            fitting = len(group)
            least = 0 if self.open else 1
            while fitting > least and not self.policy.has_room(self.open + group[:fitting], self.max_context):
                fitting -= 1
            self.scarce |= fitting < len(group)
            if fitting == 0:
                break
            self.policy.open(group[:fitting])         # together: they share their prompt
            for episode in group[:fitting]:
                episode.started = time.monotonic()
            self.open += group[:fitting]
            del self.waiting[:fitting]

    def make_room(self) -> None:
        """Close ended rollouts if others wait for their room, or if nobody scores them."""
        if self.scarce or not self.score:
            self.close_ended()

    def close_ended(self) -> None:
        """Score the rollouts that have ended, and close them."""
        ended = [episode for episode in self.open if episode.rollout]
        if ended and self.score:
            self.score(ended)
        for episode in ended:
            self.open.remove(episode)
            self.policy.close(episode)

    def close_all(self) -> None:
        """Drop everything, ended or not."""
        for episode in self.open:
            self.policy.close(episode)
        self.waiting, self.open = [], []
