"""Files that an X-ray can be made of, read into one form.

    RUN/rollouts/step-*.jsonl    a training batch with its reward arithmetic (report/saved.py)
    a saved rollout              of infer.py, or lines of eval.py: no arithmetic, grouped by question
    messages                     somebody else's trajectory, {"messages": [system, user, assistant, ...]}

A trajectory that was not scored when it was made can be scored by a `Scorer`, which the caller provides.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from minvenus.agent.protocol import ParsedTurn, format_error, parse_turn
from minvenus.agent.record import rollout_from_json
from minvenus.config import ConfigError, Recipe
from minvenus.files import latest_checkpoint, read_rows
from minvenus.igpo.gain import wrap_answer
from minvenus.report import saved
from minvenus.text.chat import CLOSE, OPEN, ChatError, stream
from minvenus.text.tokenizer import Tokenizer
from minvenus.types import Rollout, Turn

UNKNOWN = "(unknown)"                  # what infer.py writes as the answer to a question of the user's own
PROMPT_END = "<think>\n"               # the end of the generation prompt, which a turn's text begins with
LONGEST = 30_000                       # characters of a text on a page; longer ones lose their middle


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
    path: Path
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
    return Source(path, [replace(case, row=i) for i, case in enumerate(cases)], batch)


def read_records(path: Path) -> list[dict]:
    """The object of a JSON file, or those of a file with one per line."""
    try:
        records = [json.loads(path.read_bytes())]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except ValueError:
        records = [record for _, record in read_rows(path)]
    if not records or not all(isinstance(record, dict) for record in records):
        raise ConfigError(f"{path} holds no rollout: an X-ray needs a JSON object, or one per line")
    return records


def read_case(record: dict) -> Case:
    if "tokens" in record:
        rollout = rollout_from_json(record)
        name = f"run {record['run']}" if "run" in record else None
        return replace(case_of_rollout(rollout, rollout.question.id), verdict=record.get("correct"), name=name)
    if "messages" in record:
        return case_of_messages(record)
    raise ConfigError('neither a saved rollout nor a trajectory: it has no "tokens" and no "messages"')


def case_of_rollout(rollout: Rollout, group: int | str) -> Case:
    made = [(turn.text, turn.observation, turn) for turn in rollout.turns]
    answers = [] if rollout.question.answers == [UNKNOWN] else rollout.question.answers
    return Case(group, rollout.question.text, answers, shown_turns(made), rollout=rollout)


def case_of_messages(record: dict) -> Case:
    """A trajectory from elsewhere. The first user message is the question; later ones are what came back."""
    question = None
    made: list[tuple[str, str | None, None]] = []
    try:
        for message in record["messages"]:
            role, content = message["role"], message["content"]
            if not isinstance(content, str):
                raise TypeError
            if role == "assistant":
                made.append((content, None, None))
            elif role != "system" and question is None:
                question = content
            elif role != "system" and made:
                text, before, _ = made[-1]
                content = content.removeprefix(OPEN).removesuffix(CLOSE)
                made[-1] = text, content if before is None else f"{before}\n{content}", None
    except (KeyError, TypeError):
        raise ConfigError('"messages" must be a list of objects with a role and a text as content') from None
    if question is None or not made:
        raise ConfigError("a trajectory needs a user message and an assistant message after it")
    answers = [str(record["gt"])] if record.get("gt") else []
    return Case(0, question, answers, shown_turns(made), messages=record["messages"])


# --------------------------------------------------------------------------------------------------- turns


def shown_turns(made: Sequence[tuple[str, str | None, Turn | None]]) -> list[dict]:
    """What a page shows of each turn, from its text, what came back, and its record where there is one."""
    first: dict[str, int] = {}                       # a call -> the first turn that made it
    turns = []
    for t, (text, observation, turn) in enumerate(made):
        parsed = parse_turn(text)
        call = call_text(parsed)
        remarks = []
        if call is not None and first.setdefault(call, t) < t:
            remarks.append(f"the very same call as in turn {first[call] + 1}")
        if turn and turn.tool_error:
            remarks.append(f"the tool reported an error: {turn.tool_error}")
        if turn and turn.discarded:
            remarks.append(f"attempts thrown away: {', '.join(turn.discarded)}")
        rule = format_error(text, t == len(made) - 1)
        malformed = turn.malformed if turn else rule is not None
        not_run = call is not None and observation is None
        turns.append({
            "kind": turn.kind if turn else "none" if not_run else parsed.kind,
            "malformed": malformed, "rule": rule or "recorded as malformed when it was sampled",
            "thought": shortened(parsed.thought), "tool": parsed.tool, "call": call, "answer": parsed.answer,
            "raw": shortened(text) if parsed.error or malformed else None,     # where the parts are not all of it
            "observation": shortened(observation), "length": len(observation or ""), "remarks": remarks,
            "span": [turn.start, turn.end] if turn else None})
    return turns


def call_text(parsed: ParsedTurn) -> str | None:
    """The arguments of a call, one to a line."""
    if parsed.arguments is None:
        return None
    lines = parsed.arguments.get("query") or parsed.arguments["url"]
    goal = [f"goal: {parsed.arguments['goal']}"] if "goal" in parsed.arguments else []
    return "\n".join([*lines, *goal])


def shortened(text: str | None) -> str | None:
    """The first and last characters of a text that is too long, and how many are missing between them."""
    if text is None or len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters are left out here ...]\n{text[-half:]}"


# -------------------------------------------------------------------------------------------------- tokens


def run_tokenizer(source: Source) -> Tokenizer | None:
    """The tokenizer of the run that a training file lies in, if it spells the rollouts."""
    checkpoint = latest_checkpoint(source.path.resolve().parent.parent)
    if source.batch is None or checkpoint is None:
        return None
    tokenizer = Tokenizer.from_file(checkpoint / "model")
    return tokenizer if all(spells(tokenizer, rollout) for rollout in source.batch.rollouts) else None


def spells(tokenizer: Tokenizer, rollout: Rollout) -> bool:
    """Whether the tokenizer gives the text of every turn back from its ids."""
    try:
        for turn in rollout.turns:
            ids = [i for i in rollout.tokens[turn.start:turn.end] if i not in tokenizer.stop_ids]
            if PROMPT_END + tokenizer.decode(ids) != turn.text:
                return False
    except ConfigError:
        return False
    return True


def shown_tokens(rollout: Rollout, turn: Turn, tokenizer: Tokenizer) -> list[tuple[str, float | None]]:
    """Text and log-prob of each token of a turn; None where a token was not sampled. Nothing is encoded again."""
    found = []
    for i in range(turn.start, turn.end):
        logprob = rollout.logprobs[i]
        found.append((tokenizer.decode([rollout.tokens[i]]), None if logprob is None else round(logprob, 3)))
    return found


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
