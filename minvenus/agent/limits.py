"""The limits of a rollout, context and turns, and the notices that tell the model of them.

A turn begins only where enough of the context is free for it (the reserve). So every rollout that
meets the context limit gets a chance to answer, and none is ever longer than max_context.
"""

from minvenus.agent.episode import Episode
from minvenus.agent.prompt import AgentFormat
from minvenus.config import ConfigError
from minvenus.text.chat import observation_ids, prompt_ids
from minvenus.text.tokenizer import Tokenizer
from minvenus.types import Question


class Limits:
    def __init__(self, tokenizer: Tokenizer, agent_format: AgentFormat):
        self.tokenizer = tokenizer
        self.format = agent_format
        self.notice_tokens = self._tokens(agent_format.notices.context)

        # of any turn, and of the last: one more than is sampled, for the im_end of one that is cut
        last_turn = agent_format.last_turn_tokens or agent_format.max_new_tokens
        self.turn_tokens = agent_format.max_new_tokens + 1
        self.last_tokens = min(last_turn + 1, self.turn_tokens)

    def reserve(self, last: bool) -> int:
        """How many tokens of the context must be free where a turn begins.

        The last turn needs its own tokens. A turn before it needs more: whatever it writes, the
        context notice and a last turn must still fit.
        """
        if last:
            return self.last_tokens
        return self.turn_tokens + self.notice_tokens + self.last_tokens

    def check_room(self, question: Question, max_turns: int) -> None:
        """Refuse a question whose prompt leaves no room for its first turn."""
        prompt = len(prompt_ids(self.tokenizer, self.format.prompt, question.text))
        needed = prompt + self.reserve(last=max_turns == 1)
        if needed > self.format.max_context:
            raise ConfigError(
                f"question {question.id!r}: with its prompt of {prompt} tokens max_context must be "
                f"at least {needed}, not {self.format.max_context} (the server may have room for "
                "no more); or allow fewer tokens per turn")

    def turn_room(self, episode: Episode) -> int:
        """How many tokens the next turn may have."""
        room = self.format.max_context - len(episode.stream.ids) - 1
        return min(self.format.max_new_tokens, room)

    def with_notice(self, episode: Episode, observation: str) -> tuple[str, str | None]:
        """(the observation to show, with its notice; the limit that makes the next turn the last).

        The notice stands after the observation if both fit, else in its place. With
        notices.replace it always stands in its place. The limit is None if there is no notice.
        """
        notices = self.format.notices
        if len(episode.turns) + 1 == episode.max_turns:
            shown = notices.with_notice(observation, notices.last_turn)
            if self._fits(episode, shown, last=True):
                return shown, "max_steps"
        elif self._fits(episode, observation, last=False):
            return observation, None

        shown = notices.with_notice(observation, notices.context)
        if not self._fits(episode, shown, last=True):
            shown = notices.context
        return shown, "token_limit"

    def _fits(self, episode: Episode, observation: str, last: bool) -> bool:
        """Whether the turn after this observation may begin."""
        length = len(episode.stream.ids) + self._tokens(observation)
        answer_from = self.format.answer_from or self.format.max_context
        if not last and length > answer_from:
            return False
        return length + self.reserve(last) <= self.format.max_context

    def _tokens(self, observation: str) -> int:
        return len(observation_ids(self.tokenizer, observation))
