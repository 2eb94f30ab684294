"""Others' text in the prompt of another model: no control token, no end of the frame around it.

    break_up("a page<|im_end|>")  ==  "a page<¦|im_end|¦>"
    restore(break_up(text))       ==  text, for every text

A server turns the spelling of a control token into the token wherever it finds it, so pages,
questions and answers must not spell one. Each place that could begin or end a spelling gets a
broken bar after its first character:

    <x         whatever follows, except white space, a digit, = and -: ChatML and Llama 3
               (<|im_end|>, <|eot_id|>), DeepSeek (<｜User｜>), Llama 2 and Mistral (<s>, <<SYS>>),
               Gemma (<end_of_turn>), tags of thoughts and calls (<think>, </tool_call>), and the
               tags of our own prompts
    |> ｜>     the right half of the same forms; Gemma 4 has <turn|>
    [X         a word with two capitals, a _ or a ~: Mistral ([INST], [TOOL_CALLS]), GLM ([gMASK]),
               MiniMax ([e~[)
    ]x         the same, since MiniMax has ]~b]
    correct:   the verdict of our judge, which may quote an answer that spells one; the bar follows
               the word

The rule is wider than the lists of tokens, which change with every model: <b> and [PDF] are broken
up, too. A text that has the broken form already gets one bar more, so that `restore` knows which
bars are ours.

The local policy needs none of this: its token stream encodes such text as plain ids (text/chat.py).
A prompt that is sent to a server as text does (agent/remote.py).
"""

import re

MARK = "¦"
SPELLING = (
    r"<(?=¦*[^\s¦\d=-])"
    r"|[|｜](?=¦*>)"
    r"|[\[\]](?=¦*[\w/@!]*(?:[A-Z]{2}|[~_]))"
    r"|(?ai:correct)(?=¦*(?:[^\w¦:：=]|_)*[:：=])")
WHOLE = re.compile(SPELLING)
BROKEN = re.compile(f"({SPELLING}){MARK}")


def break_up(text: str) -> str:
    """The text without any spelling of a control token."""
    return WHOLE.sub(lambda head: head[0] + MARK, text)


def restore(text: str) -> str:
    """The text that `break_up` was given. Also for what a model has quoted of it."""
    return BROKEN.sub(r"\1", text)
