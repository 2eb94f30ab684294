r"""A rollout as a JSON object, and back without loss.

    messages      system, question, turn, observation, turn, ...: the conversation as text
    turns         per turn: kind, span, call, error, timings; its text and observation are messages
    tokens        the exact ids
    sampled       positions of those that the policy sampled
    logprobs      their log-probs
    prediction    the answer; for readers, it is not read back

Rendering the messages gives the text of the tokens again: every message is
<|im_start|>role\n content <|im_end|>.
"""

from dataclasses import asdict

from minvenus.agent.protocol import final_answer
from minvenus.config import ConfigError
from minvenus.text.messages import CLOSE, OPEN, unwrap
from minvenus.types import Question, Rollout, Turn

FORMAT = "minvenus rollout 2"


def rollout_to_json(rollout: Rollout) -> dict:
    turns = []
    for turn in rollout.turns:
        fields = asdict(turn)
        del fields["text"], fields["observation"]                # they are messages
        turns.append(fields)
    return {
        "format": FORMAT,
        "id": rollout.question.id,
        "question": rollout.question.text,
        "answers": rollout.question.answers,
        "pages": rollout.question.pages,
        "termination": rollout.termination,
        "error": rollout.error,
        "prediction": final_answer(rollout.turns),
        "elapsed_seconds": rollout.seconds,
        "messages": messages(rollout),
        "turns": turns,
        "tokens": rollout.tokens,
        "sampled": [i for i, sampled in enumerate(rollout.sampled) if sampled],
        "logprobs": [logprob for logprob in rollout.logprobs if logprob is not None],
    }


def rollout_from_json(value: dict) -> Rollout:
    if value.get("format") != FORMAT:
        raise ConfigError(f"not a saved rollout: its format is {value.get('format')!r}, not "
                          f"{FORMAT!r}")
    try:
        return read_rollout(value)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError("a saved rollout that cannot be read: "
                          f"{type(error).__name__}: {error}") from None


def read_rollout(value: dict) -> Rollout:
    system, _, *rest = [message["content"] for message in value["messages"]]
    observations: list[str | None] = []
    for i, content in enumerate(rest[1::2]):
        observations.append(unwrap(content, 2 * i + 3))
    observations.append(None)                                    # of the last turn
    turns = []
    for fields, text, observation in zip(value["turns"], rest[::2], observations, strict=True):
        turns.append(Turn(text=text, observation=observation, **fields))

    logprobs: list[float | None] = [None] * len(value["tokens"])
    for i, logprob in zip(value["sampled"], value["logprobs"], strict=True):
        logprobs[i] = logprob
    return Rollout(
        question=Question(
            id=value["id"],
            text=value["question"],
            answers=value["answers"],
            pages=value.get("pages"),
        ),
        tokens=value["tokens"],
        sampled=[logprob is not None for logprob in logprobs],
        logprobs=logprobs,
        turns=turns,
        termination=value["termination"],
        system=system,
        error=value["error"],
        seconds=value["elapsed_seconds"],
    )


def messages(rollout: Rollout) -> list[dict]:
    """The conversation; it ends with the last turn."""
    conversation = [
        {"role": "system", "content": rollout.system},
        {"role": "user", "content": rollout.question.text},
    ]
    for turn in rollout.turns:
        conversation.append({"role": "assistant", "content": turn.text})
        if turn.observation is not None:
            conversation.append({"role": "user", "content": OPEN + turn.observation + CLOSE})
    return conversation
