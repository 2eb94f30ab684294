r"""A conversation as one append-only stream of token ids, with a mask of what the policy sampled.

    prompt       im_start "system\n" S im_end "\n"
                 im_start "user\n" Q im_end "\n"
                 im_start "assistant\n" THINK "\n"
    turn         the sampled ids, ending with im_end; a turn cut by its token limit gets an
                 unsampled im_end
    observation  "\n" im_start "user\n" TOOL_RESPONSE "\n" R "\n" TOOL_RESPONSE_END im_end "\n"
                 im_start "assistant\n" THINK "\n"

S is the system prompt, Q the question, R a tool's result. im_start, im_end, THINK (<think>),
TOOL_RESPONSE and TOOL_RESPONSE_END are added tokens: single ids outside the BPE vocabulary. The
policy samples after THINK "\n". Only what it sampled is trained, and it is never encoded again.

The chat template of the model is not used: it drops old thoughts where a message stands outside of
<tool_response>.
Text between two added tokens is encoded in one call, as "\n" + R + "\n" is, because Qwen joins
punctuation with the newline after it. So the ids equal those of the template's rendering encoded in
one go, with two exceptions: the stream ends at the last im_end, where the template adds "\n"; and
the "\n" after THINK is encoded by itself, which differs where a thought begins with spaces and a
newline.

Q and R are untrusted: no text of theirs becomes an added token. In S and in the agent's own text
the six tags of the protocol (tokenizer.TAGS) become ids, as in the template. Control tokens such as
im_end enter only by their ids.
"""

from functools import lru_cache

from minvenus.text.messages import check_messages, split_turn, unwrap
from minvenus.text.tokenizer import Tokenizer


class Stream:
    """One conversation while it grows.

    ids       all tokens. The engine appends a turn to this very list
    sampled   for each token, whether the policy chose it: the mask of the loss. It is as long as
              `ids`, except while a turn is being written: then it ends where the turn begins
    logprobs  of the sampled tokens, in their order; the engine appends them. Empty for texts
    spans     (start, end) of each turn: ids[start:end] is the turn with its closing im_end,
              ids[:start] is the context that it was written in
    """

    def __init__(self, tokenizer: Tokenizer, system: str, question: str):
        self.tokenizer = tokenizer
        self.ids: list[int] = prompt_ids(tokenizer, system, question)
        self.prompt_length = len(self.ids)
        self.sampled: list[bool] = [False] * len(self.ids)
        self.logprobs: list[float] = []
        self.spans: list[tuple[int, int]] = []
        self.needs_turn = True                    # the next turn is not there, or not complete

    @property
    def written(self) -> list[int]:
        """The tokens so far of the turn that is being written."""
        return self.ids[len(self.sampled):]

    def written_text(self) -> str:
        """The same as text, as parse_turn expects it: with the <think> of the generation prompt,
        without the id that ended the turn."""
        ids = [i for i in self.written if i not in self.tokenizer.stop_ids]
        return "<think>\n" + self.tokenizer.decode(ids)

    def end_turn(self, sampled: bool = True) -> tuple[int, int]:
        """Close the turn that was written, and return its span. sampled=False: it came as text,
        so these may not be the ids that were sampled, and they are not trained."""
        assert self.needs_turn, "a turn comes after a generation prompt"
        start = len(self.sampled)
        self._mark(sampled)
        if self.ids[-1] != self.tokenizer.im_end:  # cut by its limit, or it is blank
            self.ids.append(self.tokenizer.im_end)
            self._mark(sampled=False)

        self.spans.append((start, len(self.ids)))
        self.needs_turn = False
        return self.spans[-1]

    def discard_turn(self) -> None:
        """Remove what was written of a turn that has not ended."""
        del self.ids[len(self.sampled):]
        del self.logprobs[sum(self.sampled):]

    def add_observation(self, text: str) -> None:
        """Append a tool's result and the generation prompt."""
        assert not self.needs_turn, "an observation comes after a turn"
        self.ids += observation_ids(self.tokenizer, text)
        self._mark(sampled=False)
        self.needs_turn = True

    def remove_observation(self) -> None:
        """Remove the newest observation, after which nothing was written."""
        end = self.spans[-1][1]
        del self.ids[end:], self.sampled[end:]
        self.needs_turn = False

    def _mark(self, sampled: bool) -> None:
        """Extend the mask over the tokens that it does not cover yet."""
        self.sampled += [sampled] * (len(self.ids) - len(self.sampled))


@lru_cache(maxsize=8)
def system_ids(tokenizer: Tokenizer, system: str) -> tuple[int, ...]:
    """Long, and the same for many questions."""
    return tuple(tokenizer.encode_tagged("system\n" + system))


def prompt_ids(tokenizer: Tokenizer, system: str, question: str) -> list[int]:
    """The system prompt, the question and the generation prompt."""
    t = tokenizer
    return [
        t.im_start, *system_ids(t, system), t.im_end,
        *t.encode_untrusted("\n"),
        t.im_start, *t.encode_untrusted("user\n" + question), t.im_end,
        *generation_prompt_ids(t),
    ]


def observation_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Everything between a turn's im_end and the next turn; its length tells whether an observation
    still fits."""
    t = tokenizer
    return [
        *t.encode_untrusted("\n"),
        t.im_start, *t.encode_untrusted("user\n"),
        t.tool_response, *t.encode_untrusted("\n" + text + "\n"), t.tool_response_end,
        t.im_end,
        *generation_prompt_ids(t),
    ]


def generation_prompt_ids(tokenizer: Tokenizer) -> list[int]:
    """From a user message's im_end (not included) to where the policy begins to sample."""
    t = tokenizer
    newline = t.encode_untrusted("\n")
    return [*newline, t.im_start, *t.encode_untrusted("assistant\n"), t.think, *newline]


# --------------------------------------------------------------------------- from messages to ids


def stream(messages: list[dict],
           tokenizer: Tokenizer) -> tuple[list[int], list[bool], list[tuple[int, int]]]:
    """(ids, sampled, spans) of a finished conversation: system, user, assistant, user, assistant,
    ..., assistant. For SFT, which trains on the assistant's messages: they count as sampled."""
    check_messages(messages)
    system, question, *rest = [message["content"] for message in messages]
    conversation = Stream(tokenizer, system, question)
    for index, content in enumerate(rest, start=2):
        if index % 2:
            conversation.add_observation(unwrap(content, index))
        else:
            thought, body = split_turn(content, index)
            text = thought.strip("\n") + "\n</think>\n\n" + body.lstrip("\n")
            conversation.ids += tokenizer.encode_tagged(text)
            conversation.ids.append(tokenizer.im_end)
            conversation.end_turn()
    return conversation.ids, conversation.sampled, conversation.spans
