"""From a raw or clean trajectory to one that can be trained on, stage by stage.

    normalise           {question, messages, gt}, the system prompt in place                    normalise.py
    prune_tools         a turn that calls a tool other than search and visit goes, with its observation
    remove_duplicates   a turn that only repeats earlier calls goes, with its observation; the first occurrence stays
    validate            roles, tags and order, each failure with its name
    repair_answer       a final turn with nested answers or stray text becomes thought and answer
    recheck             every turn passes the strict checker, can be run, and can be rendered without loss

Every stage is a pure function with counters of its own. A record that comes out goes through again unchanged. What each agent
turn became adds up: turns_in = unreadable + pruned + duplicate + kept + dropped turns, over the records that stage 1 could read.

A duplicate here ignores the goal of a visit; the running agent's own test for a repeated call does not, and lives with the agent.
Nothing here reads files or judges answers.
"""

from collections import Counter

from minvenus.agent.prompt import SYSTEM_PROMPT
from minvenus.agent.protocol import ALLOWED_ARGS, format_error, parse_turn
from minvenus.sft.blocks import all_blocks, first_block
from minvenus.sft.normalise import PromptMode, answer_turn, normalise, read_call, role, text_of
from minvenus.text.chat import ChatError, split_turn, unwrap

ALLOWED_TOOLS = tuple(ALLOWED_ARGS)
# Where the queries or addresses of a call may stand; the first of these keys that holds any counts.
TARGETS = {"search": ("query", "queries"),
           "visit": ("url", "urls", "uri", "uris", "link", "links", "page", "pages", "query", "queries")}


def clean(record: dict, system_prompt: str = SYSTEM_PROMPT,
          prompt_mode: PromptMode = "template") -> tuple[dict | None, str | None, Counter]:
    """(clean record, None, counts), or (None, why it is dropped, counts). prompt_mode "row" keeps a record's own system prompt.

    A name in `counts` that has a "/" counts by what follows it, such as pruned_tool_name_counts/PythonInterpreter.
    """
    result, reason, counts = normalise(record, system_prompt, prompt_mode)
    if result is None:
        return None, reason, counts
    messages = result["messages"]
    counts["rows_normalized"] = 1
    counts["turns_in"] = agent_turns(messages) + counts["unreadable_tool_turns_removed"]
    for stage in (prune_tools, remove_duplicates):
        messages, changed = stage(messages)
        counts += changed
    reason = validate(messages)
    if reason is None:
        messages, changed = repair_answer(messages)
        counts += changed
        reason, tools = recheck(messages)
    if reason is not None:
        counts["turns_dropped"] = agent_turns(messages)
        return None, reason, +counts
    counts["turns_kept"] = agent_turns(messages)
    counts.update({f"tools_after_cleaning/{name}": count for name, count in tools.items()})
    return result | {"messages": messages}, None, +counts


def agent_turns(messages: list) -> int:
    return sum(role(message) == "assistant" for message in messages)


# ---------------------------------------------------------------------------------------------------- whole turns that go


def prune_tools(messages: list) -> tuple[list, Counter]:
    """Remove every turn with a call to a tool that does not exist here."""
    counts: Counter = Counter()
    unwanted = set()
    for i, message in enumerate(messages):
        names = [call["name"] for call in calls(message)]
        wrong = [name for name in names if name.strip().lower() not in ALLOWED_TOOLS]
        if wrong:
            unwanted.add(i)
            counts.update(f"pruned_tool_name_counts/{name}" for name in wrong)
    kept, turns, observations = without_turns(messages, unwanted)
    counts.update({"pruned_tool_turns_removed": turns, "pruned_tool_response_turns_removed": observations})
    return kept, +counts


def remove_duplicates(messages: list) -> tuple[list, Counter]:
    """Remove every turn all of whose calls were made before in this trajectory."""
    seen: set[tuple] = set()
    unwanted = set()
    for i, message in enumerate(messages):
        signatures = {signature for call in calls(message) if (signature := call_signature(call))}
        if signatures and signatures <= seen:
            unwanted.add(i)
        seen |= signatures
    kept, turns, observations = without_turns(messages, unwanted)
    return kept, +Counter({"duplicate_tool_turns_removed": turns, "duplicate_tool_response_turns_removed": observations})


def calls(message) -> list[dict]:
    """All calls that can be read in an agent's message."""
    if role(message) != "assistant":
        return []
    return [call for block in all_blocks(text_of(message), "tool_call") if (call := read_call(block.body))]


def call_signature(call: dict) -> tuple | None:
    """What two duplicates share: the tool and the set of its queries or addresses, whatever their order and the goal."""
    name = call["name"].strip().lower()
    for key in TARGETS.get(name, ()):
        value = call["arguments"].get(key)
        items = value if isinstance(value, list) else [value]
        targets = {item.strip() for item in items if isinstance(item, str) and item.strip()}
        if targets:
            return name, *sorted(targets)
    return None


def without_turns(messages: list, unwanted: set[int]) -> tuple[list, int, int]:
    """The messages without these turns and the observations directly behind them; how many of each went."""
    kept, observations, behind = [], 0, False
    for i, message in enumerate(messages):
        if i in unwanted:
            behind = True
        elif behind and role(message) == "user" and "<tool_response>" in text_of(message):
            observations += 1
        else:
            behind = False
            kept.append(message)
    return kept, len(unwanted), observations


# ----------------------------------------------------------------------------------------------------------------- checks


def validate(messages: list) -> str | None:
    """The name of the first rule that a trajectory breaks, or None."""
    if len(messages) < 3:
        return "too_short"
    if role(messages[0]) != "system":
        return "bad_role_start"
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            return "non_dict_message"
        if i and role(message) != ("user" if i % 2 else "assistant"):
            return f"bad_role_at_{i}"
        if not isinstance(message.get("content"), str):
            return f"non_str_content_at_{i}"
    for i, message in enumerate(messages[1:], start=1):
        content = message["content"]
        error = turn_fault(content, i == len(messages) - 1) if i % 2 == 0 else user_fault(content, i)
        if error:
            return error
    return None if len(messages) % 2 else "last_message_not_assistant"


def user_fault(content: str, i: int) -> str | None:
    if i == 1:
        return "first_user_contains_tool_response" if "<tool_response>" in content else None
    both = "<tool_response>" in content and "</tool_response>" in content
    return None if both else f"user_missing_tool_response_at_{i}"


def turn_fault(content: str, final: bool) -> str | None:
    has_call, has_answer = (first_block(content, tag) is not None for tag in ("tool_call", "answer"))
    if first_block(content, "think") is None:
        return "assistant_missing_think"
    if final:
        return None if has_answer and not has_call else \
            "final_assistant_contains_tool" if has_answer else "final_assistant_missing_answer"
    return None if has_call and not has_answer else \
        "assistant_tool_turn_contains_answer" if has_call else "assistant_missing_tool_call"


def repair_answer(messages: list[dict]) -> tuple[list[dict], Counter]:
    """Rewrite the last turn as thought and innermost answer if it fails the strict check; recheck drops what cannot be saved."""
    last = messages[-1]["content"]
    rewritten = answer_turn(last) if format_error(last, final=True) else None
    if rewritten is None:
        return messages, Counter()
    return [*messages[:-1], {"role": "assistant", "content": rewritten}], Counter(answers_repaired=1)


def recheck(messages: list[dict]) -> tuple[str | None, Counter]:
    """(None, calls per tool) of a trajectory that is right in every turn, or (the name of the fault, nothing)."""
    tools: Counter = Counter()
    for i, message in enumerate(messages[2:], start=2):
        content = message["content"]
        try:
            if i % 2:
                unwrap(content, i)
                continue
            if format_error(content, final=i == len(messages) - 1):
                return f"not_well_formed_at_{i}", Counter()
            split_turn(content, i)
        except ChatError:
            return f"not_renderable_at_{i}", Counter()
        kind = parse_turn(content).kind
        if kind == "none":
            return f"call_cannot_run_at_{i}", Counter()
        if kind != "answer":
            tools[kind] += 1
    return None, tools
