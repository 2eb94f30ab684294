"""A rollout as a JSON object, and back without loss.

    messages      system, question, turn, observation, turn, ...: the conversation as text, in the schema of SFT trajectories
    turns         per turn: kind, span, call, error, timings; its text and observation stand in `messages`, once
    tokens        the exact ids; `sampled` as [start, end) spans, log-probs in the order of the sampled tokens
    prediction, *_count, final_token_count, elapsed_seconds         derived, for readers; not read back

Rendering the messages gives the text of the tokens again: every message is  <|im_start|>role\n content <|im_end|>.
"""

import json
import os
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from minvenus.agent.protocol import final_answer, parse_turn
from minvenus.config import ConfigError, read_json
from minvenus.text.chat import CLOSE, OPEN, unwrap
from minvenus.types import Question, Rollout, Turn

FORMAT = "minvenus rollout 1"
IN_MESSAGES = ("text", "observation")


def rollout_to_json(rollout: Rollout) -> dict:
    r = rollout
    discarded = [reason for turn in r.turns for reason in turn.discarded]
    return {
        "format": FORMAT, "id": r.question.id, "question": r.question.text, "answers": r.question.answers,
        "termination": r.termination, "error": r.error, "prediction": final_answer(r.turns),
        "tool_call_count": sum(turn.tool is not None for turn in r.turns),
        "tool_error_count": sum(turn.tool_error is not None for turn in r.turns),
        "parse_error_count": sum(parse_turn(turn.text).error is not None for turn in r.turns) + discarded.count("malformed"),
        "malformed_count": sum(turn.malformed for turn in r.turns),
        "dedup_count": discarded.count("duplicate"), "repetition_count": discarded.count("repetition"),
        "final_token_count": len(r.tokens), "elapsed_seconds": r.seconds,
        "messages": messages(r),
        "turns": [{k: v for k, v in asdict(turn).items() if k not in IN_MESSAGES} for turn in r.turns],
        "tokens": r.tokens, "sampled": spans(r.sampled), "logprobs": present(r.logprobs),
    }


def rollout_from_json(value: dict) -> Rollout:
    if value.get("format") != FORMAT:
        raise ConfigError(f"not a saved rollout: its format is {value.get('format')!r}, not {FORMAT!r}")
    try:
        system, _, *rest = [message["content"] for message in value["messages"]]
        texts, answers = rest[::2], [unwrap(content, 2 * i + 3) for i, content in enumerate(rest[1::2])]
        turns = [Turn(text=text, observation=observation, **turn)
                 for turn, text, observation in zip(value["turns"], texts, [*answers, None], strict=True)]
        sampled = [False] * len(value["tokens"])
        for start, end in value["sampled"]:
            sampled[start:end] = [True] * (end - start)
        return Rollout(Question(value["id"], value["question"], value["answers"]), value["tokens"], sampled,
                       spread(value["logprobs"], sampled), turns, value["termination"],
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


def save_rollout(rollout: Rollout, path) -> None:
    """Write the file whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(rollout_to_json(rollout), ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(path)


def load_rollout(path) -> Rollout:
    return rollout_from_json(read_json(path))


# ---------------------------------------------------------------------------------------------------------------- columns


def spans(flags: list[bool]) -> list[list[int]]:
    """[start, end) of every run of True."""
    found, start = [], 0
    for flag, run in groupby(flags):
        end = start + len(list(run))
        if flag:
            found.append([start, end])
        start = end
    return found


def present(column: list[float | None]) -> list[float]:
    return [x for x in column if x is not None]


def spread(values: list[float], sampled: list[bool]) -> list[float | None]:
    """A value for each sampled token, None for the others."""
    if len(values) != sum(sampled):
        raise ValueError(f"{len(values)} log-probs for {sum(sampled)} sampled tokens")
    left = iter(values)
    return [next(left) if flag else None for flag in sampled]
