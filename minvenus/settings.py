"""The settings of infer.py and eval.py, one frozen dataclass each; those of training are in
train/settings.py.

Every field has its default, its help text and the limits of its number; `heading` begins a group
of flags (flags.py makes the command line from this).

AgentConfig is what infer.py and eval.py share: the model, its tools, limits and sampling. Its
fields are flags beside those of the class that holds it. None means "as fits the model"
(agent/prompt.py).
"""

from dataclasses import dataclass
from typing import Literal

from minvenus.config import ConfigError, check, check_address
from minvenus.setting import setting

Device = Literal["auto", "cpu", "cuda"]
Hops = Literal[1, 2, 3, 4, 5, 6]
Asks = Literal["every", "last"]      # pets of its chain that a toy question asks for
ASKS = "toy web: the pets of every page of the chain, or of the last page only"
# Names of formats in agent/prompt.py: what a model was trained to read, and how it is run
Like = Literal["minvenus", "toyweb", "dr-venus"]


def check_temperature(temperature: float | None) -> None:
    """0 is greedy; a number so close to 0 that logits overflow is refused."""
    if temperature and not 0.001 <= temperature <= 100:
        raise ConfigError(f"temperature must be 0 or from 0.001 to 100, got {temperature!r}")


# ----------------------------------------------------------------------------- infer.py and eval.py


@dataclass(frozen=True)
class AgentConfig:
    """A model, its tools, limits and sampling."""

    model: str = setting("tiny",
        'folder of a Qwen3, Qwen2 or Llama model; "tiny" = the newest under runs/, else random',
        heading="model")
    device: Device = setting("auto", "auto = a GPU if there is one")
    api_base: str | None = setting(None,
        "a completion endpoint, as http://localhost:8000/v1; none = a local model")
    api_model: str | None = setting(None,
        "the endpoint's name for its model; --model then gives the tokenizer only")
    prompt_ids: bool = setting(True,
        "send token ids to an endpoint, which needs the served tokenizer; else text")
    like: Like | None = setting(None,
        "run the model as this one is run; none = as its folder's agent.json says")
    system_prompt: str | None = setting(None,
        "a text file, or a trajectory whose prompt to use; none = as --like says")

    tools: str = setting("toyweb",
        "toyweb, folder:PATH, almanac:PATH, live, record:FILE or replay:FILE",
        heading="tools")
    tool_seconds: float = setting(450.0,
        "seconds for one call of a live tool: a page 120, its extraction 300", above=0)
    max_observation_tokens: int | None = setting(None,
        "longer results of tools are cut; none = as --like says", least=64)

    max_turns: int | None = setting(None,
        "turns of the model; none = as --like says, on the toy web what is needed",
        heading="limits (none = as --like says)", least=1)
    max_context: int | None = setting(None, "tokens of a conversation", least=1)
    max_new_tokens: int | None = setting(None, "tokens of one turn", least=1)
    max_malformed: int = setting(5,
        "so many turns in a row that cannot be read end a rollout; 0 = never", least=0)
    time_limit: float | None = setting(None,
        "seconds for one rollout; none = dr-venus 9000, others no limit", above=0)

    temperature: float | None = setting(None, "0 = always the most probable token",
        heading="sampling (none = as --like says)", least=0)
    top_p: float | None = setting(None, "sample from the most probable tokens with this mass",
        above=0, most=1)
    top_k: int | None = setting(None, "and from so many of them; 0 = all", least=0)
    presence_penalty: float | None = setting(None,
        "taken from the logits of tokens already in the turn")
    retries: int | None = setting(None,
        "more attempts at a bad, repetitive or duplicate turn; temperature 0: none", least=0)
    seed: int = setting(0, "of random weights and of the sampling")
    question_seed: int | None = setting(None, "of the toy web; none = that of the sampling")
    asks: Asks = setting("every", ASKS)

    def __post_init__(self):
        check(self)
        check_temperature(self.temperature)
        if self.api_base is not None:
            check_address(self.api_base, "--api-base", "POLICY_API_KEY")
        if (self.api_base is None) != (self.api_model is None):
            raise ConfigError("an endpoint needs both --api-base and --api-model, and the word "
                              "none is no name of a model")
        if self.api_base is not None and self.model == "tiny":
            raise ConfigError(
                "an endpoint needs --model, too: a folder with the served model's tokenizer.json, "
                "which writes the prompts and counts their tokens (the weights are not needed)"
            )
        if self.temperature == 0 and self.retries:
            raise ConfigError(
                f"retries {self.retries} with temperature 0: every attempt would be the same"
            )

    @property
    def web_seed(self) -> int:
        return self.seed if self.question_seed is None else self.question_seed


@dataclass(frozen=True)
class InferConfig:
    """infer.py: let the agent answer a question."""

    question: str | None = setting(None,
        "what to ask; on the toy web one of its own, as test-7 (none = test-1)", heading="run")
    json: bool = setting(False, "print the trajectory as one line of JSON, and nothing else")
    out: str = setting("runs/infer", "folder for the resolved settings and the trajectory")
    agent: AgentConfig = AgentConfig()

    def __post_init__(self):
        check(self)
        if self.question is not None and not self.question.strip():
            raise ConfigError("question is blank")


@dataclass(frozen=True)
class EvalConfig:
    """eval.py: ask a policy a set of questions and count."""

    questions: str | None = setting(None,
        "a .jsonl, .parquet or BrowseComp .csv file; none = the toy web's test set",
        heading="questions")
    limit: int | None = setting(None,
        "only the first so many questions; none = all, on the toy web 128", least=1)
    runs: int = setting(1, "k, runs of each question; may be raised later, what is there stays",
        least=1)
    hops: Hops | None = setting(None, "toy web: only questions of so many hops; none = all")
    slack: int | None = setting(None,
        "toy web: turns allowed beyond those a question needs; none = 0", least=0)

    score: Literal["em", "f1"] = setting("em",
        "what makes an answer right: exact match, or F1 of at least .5", heading="grading")
    judge: bool = setting(False,
        "an LLM decides instead: JUDGE_BASE_URL, JUDGE_MODEL, JUDGE_API_KEY")

    out: str | None = setting(None,
        "folder, or file of the page; none = under runs/eval or runs/xray", heading="run")
    concurrency: int | None = setting(None, "runs at once; none = 64 on the toy web, else 8",
        least=1)
    pages: int | None = setting(None,
        "of 64 tokens in the local cache; none = as needed, to 4 GiB, on a GPU more", least=1)
    redo_failed: bool = setting(False,
        "make runs again that ended in an error, such as an endpoint's")
    json: bool = setting(False, "print the report as one line of JSON, and nothing else")

    compare: tuple[str, str] | None = setting(None,
        "two finished evaluations, folders or files: B against A", heading="without any run")
    xray: str | None = setting(None,
        "write the X-ray page of a rollout, trajectory or results file")
    group: str | None = setting(None,
        "with --xray: only this question's id, or this group of a training file")
    answer: str | None = setting(None,
        "with --xray: the true answer, scored by --model if the file has no beliefs")
    agent: AgentConfig = AgentConfig()

    def __post_init__(self):
        check(self)
        if self.judge and self.score != "em":
            raise ConfigError("--judge decides alone: leave --score out")
        check_tools(self.questions, self.agent.tools, "--questions")
        toy_settings = (self.hops, self.slack, self.agent.asks)
        if self.agent.tools != "toyweb" and toy_settings != (None, None, "every"):
            raise ConfigError("--hops, --slack and --asks are of the toy web")
        if self.xray is None and (self.answer is not None or self.group is not None):
            raise ConfigError("--answer and --group belong to --xray FILE")


def check_tools(file: str | None, tools: str, flag: str) -> None:
    """The toy web answers its own questions; every other tool set needs a file of questions."""
    if file is None and tools != "toyweb":
        raise ConfigError(f"--tools {tools} needs a file of questions: give {flag} FILE")
    if file is not None and tools == "toyweb":
        raise ConfigError(
            f"the toy web answers its own questions only: choose other --tools for {flag} {file}"
        )
