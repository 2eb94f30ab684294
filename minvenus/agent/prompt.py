"""What a model was trained to read, and how it is run: prompt, notices, limits, sampling.

    FOLDER/agent.json     an AgentFormat, written by training, read by all that run the model
    --like NAME           one of FORMATS instead; without either it is minvenus's own
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from minvenus.config import ConfigError, check, read_json
from minvenus.flags import build
from minvenus.igpo.recipes import Recipe
from minvenus.setting import setting
from minvenus.settings import Like, check_temperature
from minvenus.tools import toyweb_lessons as toy

AGENT_FILE = "agent.json"

TASK = """You are a deep-research agent. Questions may come from everyday life or from a \
specialised field of study. Look for the answer on the web: search, open the pages that look \
promising, and compare several credible sources before you rely on a claim. Weigh what they say \
without taking sides. When the evidence is enough, write the whole final answer between <answer> \
and </answer>."""

# Around the task these are the words of Qwen's chat template: the base model knows them.
SYSTEM_PROMPT = TASK + """

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "search", "description": \
"Search the web and return the best results of every query.", "parameters": \
{"type": "object", "properties": {"query": {"type": "array", "items": {"type": "string"}, \
"minItems": 1, "description": "The queries."}}, "required": ["query"]}}}
{"type": "function", "function": {"name": "visit", "description": \
"Open web pages and return what they say about the goal.", "parameters": \
{"type": "object", "properties": {"url": {"type": "array", "items": {"type": "string"}, \
"minItems": 1, "description": "The addresses of the pages."}, "goal": {"type": "string", \
"description": "What to find out on these pages."}}, "required": ["url", "goal"]}}}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>

Current date: 2026-03-01
"""
ANSWER_NOW = ("Write the final answer now, between <answer> and </answer>, from what you have "
              "found so far.")
# of a visit
PAGE = ("The useful information in {url} for user goal {goal} as follows: \n\n"
        "Evidence in page: \n{evidence}\n\nSummary: \n{summary}\n\n")


@dataclass(frozen=True)
class ResultFormat:
    """How results are shown, where models differ: part of what a model was trained on."""

    dates: bool = False           # a snippet begins with the page's date and source, if known
    failed_queries: bool = True   # queries without a result are listed, with the reason
    unread_page: str = "ERROR: {url}: {error}"     # in the place of a page; {goal} is the goal
    failed_call: str = "ERROR: {error}"            # of a call that failed as a whole

    def __post_init__(self):
        check(self)


PLAIN = ResultFormat()


@dataclass(frozen=True)
class Notices:
    """What the loop says as the environment; all of it is shown inside <tool_response>."""

    malformed: str = "ERROR: {error}"     # to a turn that cannot be read; {error} is the reason
    last_turn: str = f"NOTICE: No tool calls are left. {ANSWER_NOW}"
    context: str = f"NOTICE: The context is full. {ANSWER_NOW}"   # the next result might not fit
    replace: bool = False                 # the last two replace the newest observation
    results: ResultFormat = PLAIN         # how results of tools are shown

    def __post_init__(self):
        check(self)


@dataclass(frozen=True)
class AgentFormat:
    """What a model is told, and its limits and sampling where no flag gives others."""

    system: str | None = SYSTEM_PROMPT    # None = not known, it must be given
    notices: Notices = Notices()
    lead_in: str = Recipe.lead_in         # the thought before the truth, where that is scored
    max_turns: int = setting(200, "of the model, the last one included", least=1)
    max_context: int = setting(40_960, "tokens of the whole conversation", least=1)
    max_new_tokens: int = setting(8192, "of one turn", least=1)
    max_observation_tokens: int = setting(8192, "longer results of tools are cut", least=64)
    answer_from: int | None = setting(
        None, "tokens from which the next turn is the last; none = when room ends", least=1)
    last_turn_tokens: int | None = setting(
        None, "kept free for the last turn; none = as many as for any", least=1)
    time_limit: float | None = setting(None, "seconds of a conversation", above=0)
    temperature: float = setting(1.0, "the paper's sampling for evaluations", least=0)
    top_p: float = setting(0.95, "", above=0, most=1)
    top_k: int = setting(20, "0 = all", least=0)
    presence_penalty: float = 1.1
    retries: int = setting(4, "attempts more at a malformed, repetitive or duplicate turn", least=0)

    def __post_init__(self):
        check(self)
        check_temperature(self.temperature)

    @property
    def prompt(self) -> str:
        if self.system is None:
            raise ConfigError("the system prompt that this model was trained with is not known "
                              "here: give --system-prompt FILE, a text or one of the model's "
                              "trajectories")
        return self.system

    @property
    def files(self) -> dict[str, Path | dict]:
        """What to save beside the model's weights."""
        return {AGENT_FILE: asdict(self)}


MINVENUS = AgentFormat()

TOYWEB = AgentFormat(
    system=toy.SYSTEM,
    notices=Notices(malformed=toy.NOT_READ, last_turn=toy.LAST_TURN),
    lead_in=toy.LEAD_IN,
    max_context=1024,
    max_new_tokens=64,
    temperature=0.0,
    top_p=1.0,
    top_k=0,
    presence_penalty=0.0,
    retries=0,
)

# The loop of the release. Its models may make 200 turns in 240,000 tokens; only then, and instead
# of the newest observation, they are told to answer: so there is one more turn, and a context of
# 261,000. Failed searches are not mentioned, and a page that cannot be read is shown as one that
# says so.
UNREAD = PAGE.format(
    url="{url}",
    goal="{goal}",
    evidence="The page could not be accessed: check its address.",
    summary="The page could not be processed, so there is no information from it.",
)
REMINDER = ("Write your reasoning between <think> and </think>, then either one <tool_call> with a "
            "JSON object that has a name and arguments, or the final answer between <answer> and "
            "</answer>.")
DR_VENUS = AgentFormat(
    system=None,
    notices=Notices(
        malformed="ERROR: {error}\n" + REMINDER,
        replace=True,
        results=ResultFormat(dates=True, failed_queries=False, unread_page=UNREAD,
                             failed_call="ERROR: tool execution failed: {error}"),
    ),
    max_turns=201,
    max_context=261_000,
    max_new_tokens=15_000,
    max_observation_tokens=240_000,
    answer_from=240_000,
    last_turn_tokens=4096,
    time_limit=9000.0,
)
FORMATS: dict[Like, AgentFormat] = {
    "minvenus": MINVENUS,
    "toyweb": TOYWEB,
    "dr-venus": DR_VENUS,
}


def read_format(folder: Path | None, like: Like | None = None,
                system_prompt: str | None = None) -> AgentFormat:
    """How to run the model of a folder; None = the tiny model with random weights, which is for the
    toy web. `like` names another format, `system_prompt` a file with another prompt."""
    saved = None
    if folder and (folder / AGENT_FILE).is_file():
        try:
            saved = build(AgentFormat, read_json(folder / AGENT_FILE))
        except ConfigError as error:
            raise ConfigError(f"{folder / AGENT_FILE}: {error}") from None

    default = MINVENUS if folder else TOYWEB
    agent_format = FORMATS[like] if like else saved or default
    if agent_format.system is None and saved:
        agent_format = replace(agent_format, system=saved.system)
    if system_prompt:
        agent_format = replace(agent_format, system=read_prompt(system_prompt))
    return agent_format


def read_prompt(path) -> str:
    """The system prompt in a file: its text, or `messages[0]` of a trajectory in JSON."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("{"):
            text = json.loads(text)["messages"][0]["content"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(f"the system prompt cannot be read from {path}, a text or a trajectory: "
                          f"{error!r}") from None
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"the system prompt in {path} is blank")
    return text
