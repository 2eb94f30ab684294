r"""A rollout as a JSON object, and back without loss.

    messages      system, question, turn, observation, turn, ...: the conversation as text, like SFT trajectories
    turns         per turn: kind, span, call, error, timings; its text and observation are in `messages`
    tokens        the exact ids; `sampled`: positions of those that the policy sampled, `logprobs`: their log-probs
    prediction    the answer; for readers, it is not read back

Rendering the messages gives the text of the tokens again: every message is  <|im_start|>role\n content <|im_end|>.
"""

from dataclasses import asdict

from minvenus.agent.protocol import final_answer
from minvenus.config import ConfigError
from minvenus.text.chat import CLOSE, OPEN, unwrap
from minvenus.types import Question, Rollout, Turn

FORMAT = "minvenus rollout 2"
IN_MESSAGES = ("text", "observation")      # fields of a turn


def rollout_to_json(rollout: Rollout) -> dict:
    r = rollout
    return {
        "format": FORMAT, "id": r.question.id, "question": r.question.text, "answers": r.question.answers,
        "termination": r.termination, "error": r.error, "prediction": final_answer(r.turns),
        "elapsed_seconds": r.seconds, "messages": messages(r),
        "turns": [{k: v for k, v in asdict(turn).items() if k not in IN_MESSAGES} for turn in r.turns],
        "tokens": r.tokens, "sampled": [i for i, chosen in enumerate(r.sampled) if chosen],
        "logprobs": [logprob for logprob in r.logprobs if logprob is not None],
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
        logprobs: list[float | None] = [None] * len(value["tokens"])
        for i, logprob in zip(value["sampled"], value["logprobs"], strict=True):
            logprobs[i] = logprob
        return Rollout(Question(value["id"], value["question"], value["answers"]), value["tokens"],
                       [logprob is not None for logprob in logprobs], logprobs, turns, value["termination"],
                       system, value["error"], value["elapsed_seconds"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"a saved rollout that cannot be read: {type(error).__name__}: {error}") from None


def messages(rollout: Rollout) -> list[dict]:
    """The conversation; it ends with the last turn."""
    listed = [{"role": "system", "content": rollout.system}, {"role": "user", "content": rollout.question.text}]
    for turn in rollout.turns:
        listed.append({"role": "assistant", "content": turn.text})
        if turn.observation is not None:
            listed.append({"role": "user", "content": OPEN + turn.observation + CLOSE})
    return listed
