"""What minvenus itself says to the model: one system prompt for SFT, RL and inference, and the notices of the loop.

The released checkpoints were trained with other words and need theirs byte for byte: `read_prompt` takes them from a
file.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from minvenus.config import ConfigError

TASK = """You are a deep-research agent. Questions may come from everyday life or from a specialised field of study. \
Look for the answer on the web: search, open the pages that look promising, and compare several credible sources \
before you rely on a claim. Weigh what they say without taking sides. When the evidence is enough, write the whole \
final answer between <answer> and </answer>."""
STRINGS = {"type": "array", "items": {"type": "string"}, "minItems": 1}


def function(name: str, description: str, properties: dict) -> dict:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    function("search", "Search the web and return the best results of every query.", {
        "query": STRINGS | {"description": "The queries."}}),
    function("visit", "Open web pages and return what they say about the goal.", {
        "url": STRINGS | {"description": "The addresses of the pages."},
        "goal": {"type": "string", "description": "What to find out on these pages."}}),
]

# The words around the schemas are those of Qwen's chat template: the base model was trained on them.
SYSTEM_PROMPT = f"""{TASK}

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{chr(10).join(json.dumps(tool) for tool in TOOLS)}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>

Current date: 2026-03-01
"""
ANSWER_NOW = "Write the final answer now, between <answer> and </answer>, from what you have found so far."


@dataclass(frozen=True)
class Notices:
    """What the loop says as the environment; all of it is shown inside <tool_response>."""

    malformed: str = "ERROR: {error}"         # in answer to a turn that cannot be read; {error} is the parser's reason
    last_turn: str = f"NOTICE: No tool calls are left. {ANSWER_NOW}"
    context: str = f"NOTICE: The context is full. {ANSWER_NOW}"           # the next observation might not fit


def read_prompt(path) -> str:
    """The system prompt in a file: its text, or `messages[0]` if the file is a trajectory in JSON."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        if text.lstrip().startswith("{"):
            text = json.loads(text)["messages"][0]["content"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(f"the system prompt cannot be read from {path}, a text or a trajectory: {error!r}") from None
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"the system prompt in {path} is blank")
    return text
