"""Conversations as messages: which ones become a token stream (chat.py), and the text in each."""

import re

OPEN, CLOSE = "<tool_response>\n", "\n</tool_response>"


class ChatError(ValueError):
    """A conversation that breaks the protocol; the message names the place and the rule."""


def check_messages(messages: list[dict]) -> None:
    """System, question, and in turn an assistant message and a tool response; an assistant message
    is the last."""
    for index, message in enumerate(messages):
        role = "assistant"
        if index == 0:
            role = "system"
        elif index % 2:
            role = "user"
        is_text = isinstance(message, dict) and isinstance(message.get("content"), str)
        if not is_text or message.get("role") != role:
            raise ChatError(f"message {index} must be a text with the role {role!r}, got "
                            f"{message!r:.80}")
    if len(messages) < 3 or len(messages) % 2 == 0:
        raise ChatError(f"message {len(messages)} is missing: a conversation ends with an "
                        "assistant message")
    if messages[1]["content"].startswith(OPEN):
        raise ChatError("message 1 must be the question, it is a tool response")


def split_turn(content: str, index: int) -> tuple[str, str]:
    """The thought and the body of an assistant message. The template would silently drop text
    before <think>, text between two thoughts, and an empty thought: all of these are refused."""
    before, *parts = re.split("(</?think>)", content)
    if parts[::2] != ["<think>", "</think>"] or before.strip() or not parts[1].strip():
        raise ChatError(f"message {index} must be one <think> thought </think>, not blank, and "
                        f"what follows it; it begins {content[:60]!r}")
    return parts[1], parts[3]


def unwrap(content: str, index: int) -> str:
    """The text of an observation, which may itself spell any tag; only the outermost wrapper
    counts."""
    is_wrapped = content.startswith(OPEN) and content.endswith(CLOSE)
    if not is_wrapped or len(content) < len(OPEN) + len(CLOSE):
        raise ChatError(f"message {index} must be {OPEN!r} + text + {CLOSE!r} and nothing else: "
                        "otherwise the template takes it for a new question; it begins "
                        f"{content[:20]!r} and ends {content[-20:]!r}")
    return content[len(OPEN):-len(CLOSE)]
