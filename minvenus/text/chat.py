r"""A conversation as one append-only stream of token ids, with a mask of what the policy chose.

    prompt       im_start "system\n" S im_end "\n" im_start "user\n" Q im_end "\n" im_start "assistant\n" THINK "\n"
    turn         the sampled ids, ending with im_end; a turn cut by its cap gets an im_end that counts as unsampled
    observation  "\n" im_start "user\n" TOOL_RESPONSE "\n" R "\n" TOOL_RESPONSE_END im_end "\n" im_start "assistant\n" THINK "\n"

Upper-case names, im_start and im_end are single ids. Text is cut only at added tokens, since Qwen joins punctuation with the
newline after it: "\n" + R + "\n" is one call. The one other cut is after `THINK "\n"`, where the policy begins to sample. The
ids equal those of the chat template's rendering encoded in one go, but for two things: the stream ends at the last im_end, where
the template writes one more "\n", and the cut stays where a thought begins with a blank line of spaces (" \n...").

Trust: Q and R are anybody's text and can never become an added token. S and the agent's own text may hold the six tags of
the protocol, which become ids as in the template; a control token such as im_end enters only by its id. Earlier thoughts always
stay. What was sampled is never encoded again. Knows nothing of tools, rewards, or of what makes a turn well formed.
"""

from minvenus.text.tokenizer import Tokenizer

ROLES = ("system", "user", "assistant")
OPEN, CLOSE = "<tool_response>\n", "\n</tool_response>"


class ChatError(ValueError):
    """A conversation that breaks the protocol; the message names the place and the rule."""


class Stream:
    """One conversation while it grows. `ids` and `sampled` have one entry per token, `spans` one (start, end) per turn:
    ids[start:end] is what the policy wrote with its closing im_end, and ids[:start] is the context it saw."""

    def __init__(self, tokenizer: Tokenizer, system: str, question: str):
        self.tokenizer = tokenizer
        self.ids: list[int] = prompt_ids(tokenizer, system, question)
        self.sampled: list[bool] = [False] * len(self.ids)
        self.spans: list[tuple[int, int]] = []
        self.awaits_turn = True                    # the ids end with the generation prompt

    def add_turn(self, chosen: list[int]) -> tuple[int, int]:
        """Append what the policy sampled, id for id, and return its span. A stop id may only be the last one."""
        if not self.awaits_turn:
            raise ChatError(f"turn {len(self.spans)} needs an observation before it: the last thing in the stream is a turn")
        if not chosen:
            raise ChatError(f"turn {len(self.spans)} has no sampled ids")
        outside = [i for i in chosen if not 0 <= i < self.tokenizer.size]
        if outside:
            raise ChatError(f"turn {len(self.spans)} has ids {outside[:5]} outside the vocabulary of {self.tokenizer.size}: "
                            "mask them when sampling")
        early = [k for k, i in enumerate(chosen[:-1]) if i in self.tokenizer.stop_ids]
        if early:
            raise ChatError(f"turn {len(self.spans)} goes on after a stop id: number {early[0]} of its {len(chosen)} ids is "
                            f"{chosen[early[0]]}")
        start = len(self.ids)
        self.ids += chosen
        self.sampled += [True] * len(chosen)
        if chosen[-1] != self.tokenizer.im_end:    # the cap was hit, or the policy stopped with end_of_text: close it for it
            self.ids.append(self.tokenizer.im_end)
            self.sampled.append(False)
        self.spans.append((start, len(self.ids)))
        self.awaits_turn = False
        return self.spans[-1]

    def add_observation(self, text: str) -> None:
        """Append what a tool returned, and the generation prompt."""
        if self.awaits_turn:
            raise ChatError(f"an observation needs a turn before it: the stream awaits turn {len(self.spans)}")
        ids = observation_ids(self.tokenizer, text)
        self.ids += ids
        self.sampled += [False] * len(ids)
        self.awaits_turn = True

    def add_notice(self, notice: str, observation: str | None = None) -> None:
        """Append the notice that forces the last answer: behind the newest observation, or in its place where that does not fit.
        Wrapped as observations are: for the template an unwrapped user message is a new question, and older thoughts vanish."""
        self.add_observation(notice if observation is None else f"{observation}\n\n{notice}")


def stream(messages: list[dict], tokenizer: Tokenizer) -> tuple[list[int], list[bool], list[tuple[int, int]]]:
    """(ids, sampled, spans) of a finished conversation in the schema system, user, assistant, user, assistant, ..., assistant."""
    check_messages(messages)
    built = Stream(tokenizer, messages[0]["content"], messages[1]["content"])
    for index, message in enumerate(messages[2:], start=2):
        if message["role"] == "assistant":
            built.add_turn(turn_ids(tokenizer, *split_turn(message["content"], index)))
        else:
            built.add_observation(unwrap(message["content"], index))
    return built.ids, built.sampled, built.spans


# ------------------------------------------------------------------------------------------------------ text to ids


def prompt_ids(tokenizer: Tokenizer, system: str, question: str) -> list[int]:
    """The system prompt, the question and the generation prompt."""
    t = tokenizer
    return [t.im_start, *t.encode_tagged("system\n" + system), t.im_end, *t.encode_untrusted("\n"),
            t.im_start, *t.encode_untrusted("user\n" + question), t.im_end, *generation_prompt_ids(t)]


def observation_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """All that stands between a turn's im_end and the next turn; its length tells whether an observation still fits."""
    t = tokenizer
    return [*t.encode_untrusted("\n"), t.im_start, *t.encode_untrusted("user\n"), t.tool_response,
            *t.encode_untrusted("\n" + text + "\n"), t.tool_response_end, t.im_end, *generation_prompt_ids(t)]


def generation_prompt_ids(tokenizer: Tokenizer) -> list[int]:
    """From a user message's im_end (not included) to where the policy begins to sample."""
    t = tokenizer
    newline = t.encode_untrusted("\n")
    return [*newline, t.im_start, *t.encode_untrusted("assistant\n"), t.think, *newline]


def turn_ids(tokenizer: Tokenizer, thought: str, body: str) -> list[int]:
    """What the policy should have sampled for this thought and this call or answer, as the template renders it."""
    text = thought.strip("\n") + "\n</think>\n\n" + body.lstrip("\n")
    return [*tokenizer.encode_tagged(text), tokenizer.im_end]


# ------------------------------------------------------------------------------------------- messages, and their rules


def check_messages(messages: list[dict]) -> None:
    """Roles in order, plain text, an assistant message last."""
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise ChatError(f"message {index} must be a dict with a role and a string as content, got {message!r:.80}")
        expected = ROLES[0] if index == 0 else ROLES[2 - index % 2]
        if message.get("role") != expected:
            raise ChatError(f"message {index} must have the role {expected!r} (system, user, assistant, user, assistant, ...), "
                            f"got {message.get('role')!r}")
    if len(messages) < 3 or len(messages) % 2 == 0:
        raise ChatError(f"message {len(messages)} is missing: a conversation ends with an assistant message, this one has "
                        f"{len(messages)} messages; nothing could be learned from an observation that nobody answers")
    if messages[1]["content"].startswith(OPEN) and messages[1]["content"].endswith(CLOSE):
        raise ChatError("message 1 must be the question, it is a tool response")


def split_turn(content: str, index: int) -> tuple[str, str]:
    """The thought and the body of an assistant message. The template would silently drop what stands before <think> or between
    two thoughts, and a whole empty thought, so all of these are refused."""
    if content.count("<think>") != 1 or content.count("</think>") != 1:
        raise ChatError(f"message {index} must hold one <think>...</think>, it has {content.count('<think>')} <think> and "
                        f"{content.count('</think>')} </think>")
    before, _, rest = content.partition("<think>")
    thought, _, body = rest.partition("</think>")
    if before.strip():
        raise ChatError(f"message {index} must begin with <think>, it begins {content[:30]!r}")
    if not thought.strip():
        raise ChatError(f"message {index} has an empty thought: the template would drop its think block from the context")
    return thought, body


def unwrap(content: str, index: int) -> str:
    """The text of an observation, which may itself spell any tag; only the outermost wrapper counts."""
    if not (content.startswith(OPEN) and content.endswith(CLOSE) and len(content) >= len(OPEN) + len(CLOSE)):
        raise ChatError(f"message {index} must be {OPEN!r} + text + {CLOSE!r} and nothing else: otherwise the template takes it "
                        f"for a new question and drops earlier thoughts; it begins {content[:20]!r} and ends {content[-20:]!r}")
    return content[len(OPEN):len(content) - len(CLOSE)]
