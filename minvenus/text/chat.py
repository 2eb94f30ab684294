r"""A conversation as one append-only stream of token ids, with a mask of what the policy sampled.

    prompt       im_start "system\n" S im_end "\n" im_start "user\n" Q im_end "\n" im_start "assistant\n" THINK "\n"
    turn         the sampled ids, ending with im_end; a turn cut by its token limit gets an unsampled im_end
    observation  "\n" im_start "user\n" TOOL_RESPONSE "\n" R "\n" TOOL_RESPONSE_END im_end
                 "\n" im_start "assistant\n" THINK "\n"

S is the system prompt, Q the question, R a tool's result. Names in capitals, im_start and im_end are single ids. The
policy samples after THINK "\n"; only what it sampled is trained. What was sampled is never encoded again.

Text is cut only at added tokens, because Qwen joins punctuation with the newline after it: "\n" + R + "\n" is encoded
in one call. So the ids equal those of the chat template's rendering encoded in one go, with two exceptions: the stream
ends at the last im_end, where the template adds "\n"; and a thought that begins with a blank line of spaces is cut
after THINK "\n".

Q and R are anybody's text and can never become an added token. S and the agent's own text may hold the six tags of
the protocol, which become ids as in the template. Control tokens such as im_end enter only by their ids.
"""

from minvenus.text.tokenizer import Tokenizer

OPEN, CLOSE = "<tool_response>\n", "\n</tool_response>"


class ChatError(ValueError):
    """A conversation that breaks the protocol; the message names the place and the rule."""


class Stream:
    """One conversation while it grows. `ids` and `sampled` have one entry per token, `spans` one (start, end) per turn:
    ids[start:end] is the turn with its closing im_end, ids[:start] is the context it was sampled in."""

    def __init__(self, tokenizer: Tokenizer, system: str, question: str):
        self.tokenizer = tokenizer
        self.ids: list[int] = prompt_ids(tokenizer, system, question)
        self.sampled: list[bool] = [False] * len(self.ids)
        self.spans: list[tuple[int, int]] = []
        self.awaits_turn = True                    # the ids end with the generation prompt

    def add_turn(self, chosen: list[int]) -> tuple[int, int]:
        """Append what the policy sampled, id for id, and return its span."""
        turn, tokenizer = len(self.spans), self.tokenizer
        if not self.awaits_turn:
            raise ChatError(f"turn {turn} needs an observation before it: the last thing in the stream is a turn")
        if not chosen:
            raise ChatError(f"turn {turn} has no sampled ids")
        outside = [i for i in chosen if not 0 <= i < tokenizer.size]
        if outside:
            raise ChatError(f"turn {turn} has ids {outside[:5]} outside the vocabulary of {tokenizer.size}: mask them "
                            "when sampling")
        if any(i in tokenizer.stop_ids for i in chosen[:-1]):
            raise ChatError(f"turn {turn} goes on after a stop id: {chosen}")
        start = len(self.ids)
        self._append(chosen, sampled=True)
        if chosen[-1] != tokenizer.im_end:         # cut by its limit, or stopped by end_of_text: close it
            self._append([tokenizer.im_end], sampled=False)
        self.spans.append((start, len(self.ids)))
        self.awaits_turn = False
        return self.spans[-1]

    def add_observation(self, text: str) -> None:
        """Append a tool's result and the generation prompt."""
        if self.awaits_turn:
            raise ChatError(f"an observation needs a turn before it: the stream awaits turn {len(self.spans)}")
        self._append(observation_ids(self.tokenizer, text), sampled=False)
        self.awaits_turn = True

    def _append(self, ids: list[int], sampled: bool) -> None:
        self.ids += ids
        self.sampled += [sampled] * len(ids)


def stream(messages: list[dict], tokenizer: Tokenizer) -> tuple[list[int], list[bool], list[tuple[int, int]]]:
    """(ids, sampled, spans) of a finished conversation: system, user, assistant, user, assistant, ..., assistant."""
    check_messages(messages)
    built = Stream(tokenizer, messages[0]["content"], messages[1]["content"])
    for index, message in enumerate(messages[2:], start=2):
        if message["role"] == "assistant":
            built.add_turn(turn_ids(tokenizer, *split_turn(message["content"], index)))
        else:
            built.add_observation(unwrap(message["content"], index))
    return built.ids, built.sampled, built.spans


# ------------------------------------------------------------------------------------------------------ text to ids


def prompt_ids(t: Tokenizer, system: str, question: str) -> list[int]:
    """The system prompt, the question and the generation prompt."""
    return [t.im_start, *t.encode_tagged("system\n" + system), t.im_end, *t.encode_untrusted("\n"),
            t.im_start, *t.encode_untrusted("user\n" + question), t.im_end, *generation_prompt_ids(t)]


def observation_ids(t: Tokenizer, text: str) -> list[int]:
    """Everything between a turn's im_end and the next turn; its length tells whether an observation still fits."""
    return [*t.encode_untrusted("\n"), t.im_start, *t.encode_untrusted("user\n"), t.tool_response,
            *t.encode_untrusted("\n" + text + "\n"), t.tool_response_end, t.im_end, *generation_prompt_ids(t)]


def generation_prompt_ids(t: Tokenizer) -> list[int]:
    """From a user message's im_end (not included) to where the policy begins to sample."""
    newline = t.encode_untrusted("\n")
    return [*newline, t.im_start, *t.encode_untrusted("assistant\n"), t.think, *newline]


def turn_ids(t: Tokenizer, thought: str, body: str) -> list[int]:
    """The ids of a turn with this thought and this call or answer, as the template renders it."""
    return [*t.encode_tagged(thought.strip("\n") + "\n</think>\n\n" + body.lstrip("\n")), t.im_end]


# ------------------------------------------------------------------------------------------- messages, and their rules


def check_messages(messages: list[dict]) -> None:
    """Roles in order, plain text, an assistant message last."""
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise ChatError(f"message {index} must be a dict with a role and a string as content, got {message!r:.80}")
        expected = "system" if index == 0 else "user" if index % 2 else "assistant"
        if message.get("role") != expected:
            raise ChatError(f"message {index} must have the role {expected!r} (system, user, assistant, user, "
                            f"assistant, ...), got {message.get('role')!r}")
    if len(messages) < 3 or len(messages) % 2 == 0:
        raise ChatError(f"message {len(messages)} is missing: a conversation ends with an assistant message")
    if messages[1]["content"].startswith(OPEN) and messages[1]["content"].endswith(CLOSE):
        raise ChatError("message 1 must be the question, it is a tool response")


def split_turn(content: str, index: int) -> tuple[str, str]:
    """The thought and the body of an assistant message. The template would silently drop text before <think>, text
    between two thoughts, and an empty thought: all of these are refused."""
    counts = content.count("<think>"), content.count("</think>")
    if counts != (1, 1):
        raise ChatError(f"message {index} must hold one <think>...</think>, it has {counts[0]} <think> and {counts[1]} "
                        "</think>")
    before, _, rest = content.partition("<think>")
    thought, _, body = rest.partition("</think>")
    if before.strip():
        raise ChatError(f"message {index} must begin with <think>, it begins {content[:30]!r}")
    if not thought.strip():
        raise ChatError(f"message {index} has an empty thought: the template would drop its think block")
    return thought, body


def unwrap(content: str, index: int) -> str:
    """The text of an observation, which may itself spell any tag; only the outermost wrapper counts."""
    if not (content.startswith(OPEN) and content.endswith(CLOSE) and len(content) >= len(OPEN) + len(CLOSE)):
        raise ChatError(f"message {index} must be {OPEN!r} + text + {CLOSE!r} and nothing else: otherwise the template "
                        f"takes it for a new question; it begins {content[:20]!r} and ends {content[-20:]!r}")
    return content[len(OPEN):len(content) - len(CLOSE)]
