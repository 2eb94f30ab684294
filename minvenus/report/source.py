"""Files that an X-ray can be made of, read into one form.

    RUN/rollouts/step-*.jsonl    a training batch with its reward arithmetic (report/saved.py)
    a saved rollout              infer.py --save, or lines of eval.py: no arithmetic, grouped by question
    messages                     somebody else's trajectory, {"messages": [system, user, assistant, ...]}

A trajectory that was not scored when it was made can be scored by a `Scorer`, which the caller provides.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path

from minvenus.agent.protocol import ParsedTurn, format_error, parse_turn
from minvenus.agent.record import rollout_from_json
from minvenus.config import ConfigError, Recipe
from minvenus.igpo.gain import wrap_answer
from minvenus.report import saved
from minvenus.text.chat import CLOSE, OPEN, ChatError, stream
from minvenus.text.tokenizer import Tokenizer, TokenizerError
from minvenus.types import Rollout, Turn

UNKNOWN = "(unknown)"                  # what infer.py writes as the answer to a question of the user's own
PROMPT_END = "<think>\n"               # the end of the generation prompt, which a turn's text begins with


@dataclass(frozen=True)
class Case:
    """One rollout as a page shows it."""

    group: int | str
    question: str
    answers: list[str]                 # the true ones; empty where they are not known
    turns: list[dict]                  # of shown_turns
    row: int = 0                       # its place in the file
    rollout: Rollout | None = None     # None for a trajectory of messages
    messages: list[dict] | None = None
    verdict: bool | None = None        # of eval.py
    name: str | None = None            # which run of the question

    @property
    def kinds(self) -> list[str]:
        return [turn["kind"] for turn in self.turns]

    @property
    def malformed(self) -> list[bool]:
        return [turn["malformed"] for turn in self.turns]


@dataclass(frozen=True)
class Source:
    name: str
    cases: list[Case]
    batch: saved.SavedBatch | None = None        # of a training file


def read_source(path) -> Source:
    path = Path(path)
    records = read_records(path)
    batch, cases = None, []
    if records[0].get("format") == saved.FORMAT:
        batch = saved.load_batch(path)
        cases = [case_of_rollout(rollout, m.group) for rollout, m in zip(batch.rollouts, batch.measured, strict=True)]
    else:
        for number, record in enumerate(records, start=1):
            try:
                cases.append(read_case(record))
            except ConfigError as error:
                raise ConfigError(f"{path}, record {number}: {error}") from None
    return Source(path.name, [replace(case, row=i) for i, case in enumerate(cases)], batch)


def read_records(path: Path) -> list[dict]:
    """The objects of a JSON file, or of one with an object per line."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    try:
        whole = json.loads(content)
        records = whole if isinstance(whole, list) else [whole]
    except ValueError:
        try:
            records = [json.loads(line) for line in content.split("\n") if line.strip()]
        except ValueError as error:
            raise ConfigError(f"{path} is neither JSON nor JSON lines: {error}") from None
    if not records or not all(isinstance(record, dict) for record in records):
        raise ConfigError(f"{path} holds no rollout: an X-ray needs a JSON object, or one per line")
    return records


def read_case(record: dict) -> Case:
    if "rollout" in record or "tokens" in record:
        rollout = rollout_from_json(record.get("rollout", record))
        case = case_of_rollout(rollout, rollout.question.id)
        verdict, run = record.get("correct"), record.get("run")
        return replace(case, verdict=verdict if isinstance(verdict, bool) else None,
                       name=f"run {run}" if isinstance(run, int) else None)
    if "messages" in record:
        return case_of_messages(record)
    raise ConfigError('neither a saved rollout nor a trajectory: it has no "rollout", no "tokens" and no "messages"')


def case_of_rollout(rollout: Rollout, group: int | str) -> Case:
    made = [(turn.text, turn.observation, turn) for turn in rollout.turns]
    answers = [] if rollout.question.answers == [UNKNOWN] else rollout.question.answers
    return Case(group, rollout.question.text, answers, shown_turns(made), rollout=rollout)


def case_of_messages(record: dict) -> Case:
    """A trajectory from elsewhere. Roles may come in any order, but a turn must follow a question."""
    messages = record["messages"]
    texts = [isinstance(m, dict) and isinstance(m.get("content"), str) for m in messages] if type(messages) is list else []
    if not texts or not all(texts):
        raise ConfigError('"messages" must be a list of objects with a role and a text as content')
    question = None
    made: list[tuple[str, str | None, None]] = []
    for message in messages:
        role, content = message.get("role"), message["content"]
        if role == "assistant":
            made.append((content, None, None))
        elif role in ("user", "tool") and question is None:
            question = content
        elif role in ("user", "tool") and made:
            text, observation, _ = made[-1]
            if content.startswith(OPEN) and content.endswith(CLOSE):
                content = content[len(OPEN):-len(CLOSE)]
            made[-1] = text, content if observation is None else f"{observation}\n{content}", None
    if question is None or not made:
        raise ConfigError("a trajectory needs a user message and an assistant message after it")
    answer = record.get("gt")
    answers = [answer] if isinstance(answer, str) and answer.strip() else []
    return Case(0, question, answers, shown_turns(made), messages=messages)


# --------------------------------------------------------------------------------------------------- turns


def shown_turns(made: Sequence[tuple[str, str | None, Turn | None]]) -> list[dict]:
    """What a page shows of each turn, from its text, what came back, and its record where there is one."""
    first: dict[str, int] = {}                       # a call -> the first turn that made it
    turns = []
    for t, (text, observation, turn) in enumerate(made):
        parsed = parse_turn(text)
        repeats = None
        if parsed.arguments is not None:
            earliest = first.setdefault(json.dumps(parsed.arguments, sort_keys=True), t)
            repeats = earliest if earliest < t else None
        rule = format_error(text, t == len(made) - 1)
        malformed = turn.malformed if turn else rule is not None
        not_run = parsed.arguments is not None and observation is None
        kind = turn.kind if turn else "none" if not_run else parsed.kind
        turns.append({
            "kind": kind, "malformed": malformed, "rule": rule or "recorded as malformed when it was sampled",
            "thought": parsed.thought, "tool": parsed.tool, "call": call_text(parsed), "answer": parsed.answer,
            "raw": text if parsed.error or malformed else None,        # where the parts above are not all of it
            "observation": observation, "came_back": came_back(observation, turn), "repeats": repeats,
            "remarks": remarks(parsed, kind, repeats, turn), "span": [turn.start, turn.end] if turn else None,
            "tokens": None})
    return turns


def call_text(parsed: ParsedTurn) -> str | None:
    """The arguments of a call, one to a line."""
    if parsed.arguments is None:
        return None
    lines = parsed.arguments.get("query") or parsed.arguments["url"]
    goal = [f"goal: {parsed.arguments['goal']}"] if "goal" in parsed.arguments else []
    return "\n".join([*lines, *goal])


def came_back(observation: str | None, turn: Turn | None) -> str:
    """The size of an observation in words, and how long it took."""
    size = plural(len(observation or ""), "character")
    return f"{size}, {turn.tool_seconds:.1f} s" if turn and turn.tool_seconds >= 0.05 else size


def remarks(parsed: ParsedTurn, kind: str, repeats: int | None, turn: Turn | None) -> list[str]:
    found = []
    if repeats is not None:
        found.append(f"the very same call as in turn {repeats + 1}")
    if parsed.error and parsed.tool:
        found.append(f"call not run: {parsed.error}")
    elif kind == "none" and parsed.arguments is not None:
        found.append("the call came too late to be run")
    if turn and turn.tool_error:
        found.append(f"the tool reported an error: {turn.tool_error}")
    if turn and turn.discarded:
        found.append(f"{plural(len(turn.discarded), 'attempt')} thrown away: {', '.join(turn.discarded)}")
    return found


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


# -------------------------------------------------------------------------------------------------- tokens


def find_tokenizer(rollouts: list[Rollout], path: Path) -> Tokenizer | None:
    """The tokenizer that made the rollouts of a file: that of the run which it lies in, or the tiny one.
    The file does not name it, so it counts only if it gives the text of every turn back."""
    tried = [Tokenizer.tiny()]
    checkpoints = sorted(path.resolve().parent.parent.glob("checkpoints/*/model/tokenizer.json"))
    if checkpoints:
        with suppress(TokenizerError):
            tried.insert(0, Tokenizer.from_file(checkpoints[-1]))
    return next((t for t in tried if rollouts and all(spells(t, rollout) for rollout in rollouts)), None)


def spells(tokenizer: Tokenizer, rollout: Rollout) -> bool:
    """Whether the tokenizer gives the text of every turn back from its ids."""
    try:
        for turn in rollout.turns:
            ids = [i for i in rollout.tokens[turn.start:turn.end] if i not in tokenizer.stop_ids]
            if PROMPT_END + tokenizer.decode(ids) != turn.text:
                return False
    except TokenizerError:
        return False
    return True


def turn_tokens(rollout: Rollout, start: int, end: int, tokenizer: Tokenizer) -> list[tuple[str, float | None]]:
    """Text and log-prob of the tokens start:end; None where a token was not sampled. Tokens that hold parts
    of one character are shown as one, with the sum of their log-probs. Nothing is encoded again."""
    shown, held = [], []
    for i in range(start, end):
        held.append(i)
        text = tokenizer.decode([rollout.tokens[k] for k in held])
        incomplete = "\ufffd" in text and len(held) <= 6           # no character has more than four bytes
        border = i + 1 == end or rollout.sampled[i + 1] != rollout.sampled[i]
        if border or not incomplete:
            logprobs = [rollout.logprobs[k] or 0.0 for k in held]
            shown.append((text, round(fsum(logprobs), 3) if rollout.sampled[i] else None))
            held = []
    return shown


# ------------------------------------------------------------------------------------------------- scoring


@dataclass(frozen=True)
class Scorer:
    """A model that can say how probable an answer is."""

    name: str
    tokenizer: Tokenizer
    # score(tokens, lengths, continuation): per length n, the log-prob of each continuation token after tokens[:n]
    score: Callable[[list[int], list[int], list[int]], list[list[float]]]
    context: int                                 # tokens that it takes at most


def answer_logprobs(case: Case, scorer: Scorer, recipe: Recipe) -> list[list[float] | None]:
    """Before each turn, the log-prob of every token of the true answer."""
    if case.rollout is not None:
        if not spells(scorer.tokenizer, case.rollout):
            raise ConfigError(f"the rollout's ids were made with another tokenizer than that of {scorer.name}")
        tokens, starts = case.rollout.tokens, [turn.start for turn in case.rollout.turns]
    else:
        try:
            tokens, _, spans = stream(case.messages or [], scorer.tokenizer)
        except ChatError as error:
            raise ConfigError(f"this trajectory cannot be scored: {error}") from None
        starts = [start for start, _ in spans]
    wrapped = wrap_answer(case.answers[0], scorer.tokenizer, recipe)
    if len(tokens) + len(wrapped.ids) > scorer.context:
        raise ConfigError(f"the trajectory has {len(tokens):,} tokens and its answer {len(wrapped.ids)}; {scorer.name} "
                          f"takes {scorer.context:,} at most")
    return [row[wrapped.start:] for row in scorer.score(tokens, starts, wrapped.ids)]
