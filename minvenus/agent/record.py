r"""A rollout as a JSON object, and back without loss.

    messages      system, question, turn, observation, turn, ...: the conversation as text, like SFT trajectories
    turns         per turn: kind, span, call, error, timings; its text and observation are in `messages`
    tokens        the exact ids; `sampled` as [start, end) spans, log-probs in the order of the sampled tokens
    prediction, *_count, elapsed_seconds         derived, for readers; only elapsed_seconds is read back

Rendering the messages gives the text of the tokens again: every message is  <|im_start|>role\n content <|im_end|>.
"""

import json
from dataclasses import asdict
from itertools import groupby

from minvenus.agent.protocol import final_answer, parse_turn
from minvenus.config import ConfigError, read_json
from minvenus.files import write_text
from minvenus.text.chat import CLOSE, OPEN, unwrap
from minvenus.types import Question, Rollout, Turn

FORMAT = "minvenus rollout 1"
IN_MESSAGES = ("text", "observation")      # fields of a turn


def rollout_to_json(rollout: Rollout) -> dict:
    r = rollout
    discarded = [reason for turn in r.turns for reason in turn.discarded]
    unread = sum(parse_turn(turn.text).error is not None for turn in r.turns)
    return {
        "format": FORMAT, "id": r.question.id, "question": r.question.text, "answers": r.question.answers,
        "termination": r.termination, "error": r.error, "prediction": final_answer(r.turns),
        "tool_call_count": sum(turn.tool is not None for turn in r.turns),
        "tool_error_count": sum(turn.tool_error is not None for turn in r.turns),
        "parse_error_count": unread + discarded.count("malformed"),
        "malformed_count": sum(turn.malformed for turn in r.turns),
        "dedup_count": discarded.count("duplicate"), "repetition_count": discarded.count("repetition"),
        "final_token_count": len(r.tokens), "elapsed_seconds": r.seconds,
        "messages": messages(r),
        "turns": [{k: v for k, v in asdict(turn).items() if k not in IN_MESSAGES} for turn in r.turns],
        "tokens": r.tokens, "sampled": spans(r.sampled), "logprobs": [x for x in r.logprobs if x is not None],
    }


def rollout_from_json(value: dict) -> Rollout:
    if value.get("format") != FORMAT:
        raise ConfigError(f"not a saved rollout: its format is {value.get('format')!r}, not {FORMAT!r}")
    try:
        system, _, *rest = [message["content"] for message in value["messages"]]
        texts = rest[::2]
        observations = [unwrap(content, 2 * i + 3) for i, content in enumerate(rest[1::2])]
        turns = [Turn(text=text, observation=observation, **turn)
                 for turn, text, observation in zip(value["turns"], texts, [*observations, None], strict=True)]
        sampled = [False] * len(value["tokens"])
        for start, end in value["sampled"]:
            sampled[start:end] = [True] * (end - start)
        if len(value["logprobs"]) != sum(sampled):
            raise ValueError(f"{len(value['logprobs'])} log-probs for {sum(sampled)} sampled tokens")
        left = iter(value["logprobs"])
        return Rollout(Question(value["id"], value["question"], value["answers"]), value["tokens"], sampled,
                       [next(left) if chosen else None for chosen in sampled], turns, value["termination"],
                       system, value["error"], value["elapsed_seconds"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"a saved rollout that cannot be read: {type(error).__name__}: {error}") from None


def messages(rollout: Rollout) -> list[dict]:
    """The conversation; it ends with the last turn."""
    listed = [{"role": "system", "content": rollout.system}, {"role": "user", "content": rollout.question.text}]
    for turn in rollout.turns:
        listed.append({"role": "assistant", "content": turn.text})
        if turn.observation is not None:
            listed.append({"role": "user", "content": OPEN + turn.observation + CLOSE})
    return listed


def spans(flags: list[bool]) -> list[list[int]]:
    """[start, end) of every run of True."""
    found, start = [], 0
    for flag, run in groupby(flags):
        end = start + len(list(run))
        if flag:
            found.append([start, end])
        start = end
    return found


def save_rollout(rollout: Rollout, path) -> None:
    """Write the file whole or not at all."""
    write_text(path, json.dumps(rollout_to_json(rollout), ensure_ascii=False) + "\n")


def load_rollout(path) -> Rollout:
    return rollout_from_json(read_json(path))
