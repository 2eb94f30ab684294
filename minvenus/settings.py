"""The settings of the four scripts, one frozen dataclass each. Defaults of the training scripts are those of the tiny
model; presets.py has the values for others.

AgentConfig is what infer.py and eval.py share: the policy, its tools, limits and sampling. Its fields are flags beside
those of the class that holds it (flags.py). A value of None means "as fits the model": see agent/policy.py.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from minvenus.config import (
    MODELS,
    BelowOne,
    ConfigError,
    Count,
    CountOrZero,
    Fraction,
    GroupSize,
    ModelConfig,
    NotNegative,
    Positive,
    Share,
    check,
    check_address,
)
from minvenus.igpo.loss import LossConfig
from minvenus.igpo.recipes import Recipe

Device = Literal["auto", "cpu", "cuda"]
Hops = Literal[1, 2, 3, 4, 5, 6]
Preset = Literal["tiny", "qwen3-0.6b", "qwen3-4b-lora", "dr-venus-4b"]
ResultSize = Annotated[int, "of at least 64", lambda v: v >= 64]
Temperature = Annotated[float, "0 or from 0.001 to 100", lambda v: v == 0 or 0.001 <= v <= 100]
AboveZero = Annotated[float, "from 0.001 to 100", lambda v: 0.001 <= v <= 100]
# Names of formats in agent/prompt.py: what a model was trained to read, and how it is run
Like = Literal["minvenus", "toyweb", "dr-venus"]


@dataclass(frozen=True)
class AgentConfig:
    """A policy, its tools, limits and sampling."""

    model: str = "tiny"                     # folder of a Qwen3 checkpoint; "tiny" = the newest under runs/, else random
    tools: str = "toyweb"                   # toyweb, folder:PATH, live, record:FILE or replay:FILE
    api_base: str | None = None             # a completion endpoint, as http://localhost:8000/v1; none = a local model
    api_model: str | None = None            # the endpoint's name for its model; --model then gives the tokenizer only
    prompt_ids: bool = True                 # send ids to an endpoint, which needs the served tokenizer; else text
    like: Like | None = None                # run the model as this one is run; none = as its folder's agent.json says
    system_prompt: str | None = None        # a text file, or a trajectory whose prompt to use; none = as --like says
    max_turns: Count | None = None          # turns of the model; none = as --like says, on the toy web what is needed
    max_context: Count | None = None        # tokens of a conversation; none = as --like says, and so are the next ones
    max_new_tokens: Count | None = None     # tokens of one turn
    max_observation_tokens: ResultSize | None = None  # longer results of tools are cut
    temperature: Temperature | None = None  # 0 = always the most probable token
    top_p: Fraction | None = None           # sample from the most probable tokens with this mass
    top_k: CountOrZero | None = None        # and from so many of them, 0 = all
    presence_penalty: float | None = None   # taken from the logits of tokens already in the turn
    retries: CountOrZero | None = None      # more attempts at a bad, repetitive or duplicate turn; temperature 0: none
    max_malformed: CountOrZero = 5          # so many turns in a row that cannot be read end a rollout; 0 = never
    time_limit: Positive | None = None      # seconds for one rollout; none = dr-venus 9000, others no limit
    tool_seconds: Positive = 450.0          # seconds for one call of a live tool: a page 120, its extraction 300
    seed: int = 0                           # of random weights and of the sampling
    question_seed: int | None = None        # of the toy web; none = that of the sampling
    device: Device = "auto"                 # auto = a GPU if there is one

    def __post_init__(self):
        check(self)
        if self.api_base is not None:
            check_address(self.api_base, "--api-base", "POLICY_API_KEY")
        if (self.api_base is None) != (self.api_model is None):
            raise ConfigError("an endpoint needs both --api-base and --api-model")
        if self.api_base is not None and self.model == "tiny":
            raise ConfigError("an endpoint needs --model, too: a folder with the served model's tokenizer.json, which "
                              "writes the prompts and counts their tokens (the weights are not needed)")
        if self.temperature == 0 and self.retries:
            raise ConfigError(f"retries {self.retries} with temperature 0: every attempt would be the same")

    @property
    def web_seed(self) -> int:
        return self.seed if self.question_seed is None else self.question_seed


@dataclass(frozen=True)
class InferConfig:
    """infer.py: let the agent answer a question."""

    question: str | None = None             # what to ask; on the toy web one of its own, as test-7 (none = test-1)
    agent: AgentConfig = AgentConfig()      # the policy and its tools
    json: bool = False                      # print the trajectory as one line of JSON, and nothing else
    out: str = "runs/infer"                 # folder for the resolved settings and the trajectory

    def __post_init__(self):
        check(self)
        if self.question is not None and not self.question.strip():
            raise ConfigError("question is blank")


@dataclass(frozen=True)
class EvalConfig:
    """eval.py: ask a policy a set of questions and count."""

    questions: str | None = None            # a .jsonl, .parquet or BrowseComp .csv file; none = the toy web's test set
    limit: Count | None = None              # only the first so many questions; none = all, on the toy web 128
    runs: Count = 1                         # k, runs of each question; may be raised later, what is there stays
    concurrency: Count | None = None        # runs at once; none = 64 on the toy web, else 8
    score: Literal["em", "f1"] = "em"       # what makes an answer right: exact match, or F1 of at least .5
    judge: bool = False                     # an LLM decides instead: JUDGE_BASE_URL, JUDGE_MODEL, JUDGE_API_KEY
    agent: AgentConfig = AgentConfig()      # the policy and its tools
    hops: Hops | None = None                # toyweb: only questions of so many hops; none = all
    slack: CountOrZero | None = None        # toyweb: turns allowed beyond those a question needs; none = 0
    pages: Count | None = None              # of 64 tokens in the local cache; none = as needed, to 4 GiB, on a GPU more
    compare: tuple[str, str] | None = None  # two finished evaluations, folders or files: B against A; nothing is run
    xray: str | None = None                 # write the X-ray page of a rollout, trajectory or results file; no run
    group: str | None = None                # with --xray: only this question's id, or this group of a training file
    answer: str | None = None               # with --xray: the true answer, scored by --model if the file has no values
    json: bool = False                      # print the report as one line of JSON, and nothing else
    out: str | None = None                  # folder, or file of the page; none = under runs/eval or runs/xray
    redo_failed: bool = False               # make runs again that ended in an error, such as an endpoint's

    def __post_init__(self):
        check(self)
        if self.judge and self.score != "em":
            raise ConfigError("--judge decides alone: leave --score out")
        check_tools(self.questions, self.agent.tools, "--questions")
        if self.agent.tools != "toyweb" and (self.hops, self.slack) != (None, None):
            raise ConfigError("--hops and --slack are of the toy web")
        if self.xray is None and (self.answer is not None or self.group is not None):
            raise ConfigError("--answer and --group belong to --xray FILE")


def check_tools(file: str | None, tools: str, flag: str) -> None:
    """The toy web answers its own questions; every other tool set needs a file of questions."""
    if file is None and tools != "toyweb":
        raise ConfigError(f"--tools {tools} needs a file of questions: give {flag} FILE")
    if file is not None and tools == "toyweb":
        raise ConfigError(f"the toy web answers its own questions only: choose other --tools for {flag} {file}")


def model_shape(model: str) -> ModelConfig:
    file = Path(model) / "config.json"
    return ModelConfig.from_json(file) if file.is_file() else ModelConfig.preset(model.removesuffix("-base"))


def check_preset(config: "SFTConfig | IGPOConfig") -> None:
    """A plan needs no more than the model's shape. The tiny model's settings are for no other: its learning rate would
    ruin a real model, its context would cut every rollout."""
    model = config.model
    known = ("tiny", "tiny-base", *MODELS) if config.plan else ("tiny", "tiny-base")
    if model not in known and not (Path(model) / "config.json").is_file():
        raise ConfigError("model must be 'tiny-base', 'tiny' or a folder with a config.json (of a training run: "
                          "RUN/checkpoints/step-.../model), for a --plan also one of "
                          f"{', '.join(MODELS)}; got {model!r}")
    if config.preset == "tiny" and model_shape(model).hidden_size > MODELS["tiny"].hidden_size:
        others = ", ".join(name for name in get_args(Preset) if name != "tiny")
        raise ConfigError(f"{model} is not the tiny model, and preset tiny has the tiny model's learning rate, context "
                          f"and turns: choose --preset from {others}; flags beside it change single values")


@dataclass(frozen=True)
class SFTConfig:
    """train_sft.py: supervised fine-tuning on trajectories."""

    preset: Preset = "tiny"                    # a named set of values for a model and a card: docs/scale.md
    data: str = "toyweb"                       # "toyweb" (made demonstrations) or a .jsonl of python -m minvenus.sft
    model: str = "tiny-base"                   # "tiny-base", "tiny" (random weights) or a Qwen3 checkpoint's folder
    like: Like | None = None                   # it will be run as this one is; none = as the start's agent.json says
    out: str = "runs/sft"                      # the run's folder: checkpoints, metrics, settings
    seed: int = 0                              # of random weights, demonstrations and the order of the data
    steps: Count = 250                         # optimiser steps
    batch: Count = 16                          # trajectories per step
    pack_tokens: Count = 8192                  # tokens of one forward pass at most; memory, not mathematics
    max_tokens: Count = 4096                   # longest trajectory; longer ones are dropped
    reduction: Literal["trajectory-mean", "token-mean"] = "token-mean"  # first within each, or over all tokens
    learning_rate: Positive = 1e-3             # its peak, after the warm-up
    warmup: Share = 0.1                        # share of the steps
    weight_decay: NotNegative = 0.01           # on all parameters
    clip: Positive = 1.0                       # gradients are scaled down to this norm
    lora_rank: CountOrZero = 0                 # train adapters of this rank, not the weights; 0 = train all weights
    lora_alpha: Positive = 32.0                # of the adapters: their product counts alpha / rank times
    recompute: bool = False                    # keep only layer inputs, compute the rest again: less memory, slower
    sequence_parallel: Count = 1               # under torchrun: processes that share the tokens of each forward pass
    validation: CountOrZero = 64               # trajectories held out of the training data
    evaluate_every: Count = 50                 # steps between validations
    save_every: Count = 50                     # steps between checkpoints
    plan: bool = False                         # print the memory that a process would need, and stop: nothing is loaded
    device: Device = "auto"                    # auto = a GPU if there is one
    demonstrations: Count = 768                # toyweb: how many there are
    most_hops: Hops = 4                        # toyweb: of 1, 2, ... so many hops in turn
    wrong_result: Share = 0.5                  # toyweb: how often their teacher opens a wrong result first, per hop
    replay: BelowOne = 0.25                    # toyweb: share of the base's texts, against forgetting names

    def __post_init__(self):
        check(self)
        if self.pack_tokens < self.max_tokens:
            raise ConfigError(f"pack_tokens {self.pack_tokens} must hold a trajectory of max_tokens {self.max_tokens}")
        check_preset(self)


@dataclass(frozen=True)
class IGPOConfig:
    """train_igpo.py: reinforcement learning on questions."""

    preset: Preset = "tiny"                    # a named set of values for a model and a card: docs/scale.md
    model: str = "tiny-base"                   # folder of the start checkpoint, "tiny-base" or "tiny" (random)
    data: str = "toyweb"                       # "toyweb" or a .jsonl, .parquet or BrowseComp .csv file of questions
    tools: str = "toyweb"                      # toyweb; for a file folder:PATH, live, record:FILE or replay:FILE
    like: Like | None = None                   # run the model as this one is run; none = as its agent.json says
    system_prompt: str | None = None           # a text file, or a trajectory whose prompt to use; none = as --like says
    out: str = "runs/igpo"                     # the run's folder: checkpoints, metrics, rollouts, settings
    seed: int = 0                              # of all sampling
    question_seed: int | None = None           # of the toy web and of the questions' order; none = that of the sampling
    recipe: Recipe = Recipe()                  # how rewards become advantages, by default paper; its fields are flags
    gain_policy: Literal["current", "reference"] = "current"  # the model that scores answers: policy, or its start
    steps: Count = 80                          # batches of rollouts
    questions: Count = 8                       # per step
    group: GroupSize = 4                       # rollouts of each question
    epochs: Count = 1                          # passes over a batch
    minibatches: Count = 1                     # optimiser steps per pass
    learning_rate: Positive = 6e-4             # constant
    weight_decay: NotNegative = 0.01           # on all parameters
    clip: Positive = 1.0                       # gradients are scaled down to this norm
    loss: LossConfig = LossConfig()            # the policy loss; its fields are flags
    outcome: Literal["em", "f1"] = "em"        # reward of the answer, compared with the accepted ones
    judge: bool = False                        # an LLM judge instead: JUDGE_BASE_URL, JUDGE_MODEL, JUDGE_API_KEY
    temperature: AboveZero = 1.0               # of sampling, and of the log-probs that are trained
    top_p: Fraction = 1.0                      # of sampling; trained log-probs are always of the whole softmax
    max_turns: Count | None = None             # per rollout; none = 200, on the toy web what hops and slack need
    max_turn_tokens: Count = 48                # sampled in one turn
    max_context: Count = 768                   # tokens of a rollout
    max_observation_tokens: ResultSize = 8192  # longer results of tools are cut
    tool_seconds: Positive = 450.0             # seconds for one call of a live tool: a page 120, its extraction 300
    tool_threads: Count = 16                   # calls of live tools at once; other tools answer in order, reproducibly
    pages: Count = 6144                        # of the cache, 16 tokens each: 128 rollouts of the tiny model at once
    pack_tokens: Count = 4096                  # tokens of one training forward at most; memory, not mathematics
    lora_rank: CountOrZero = 0                 # train adapters of this rank, not the weights; 0 = train all weights
    lora_alpha: Positive = 32.0                # of the adapters: their product counts alpha / rank times
    recompute: bool = False                    # keep only layer inputs, compute the rest again: less memory, slower
    sequence_parallel: Count = 1               # under torchrun: processes that share the tokens of each forward pass
    hops: Hops | None = 4                      # toy web: hops of every question; none = 1, 2, 3 and 4 in turn
    slack: CountOrZero = 0                     # toy web: turns beyond what is needed
    evaluate_every: Count = 20                 # steps between evaluations on held-out questions; also at the start
    evaluate_questions: CountOrZero | None = None  # how many, a file's first; none = 128, of a file 0 = none
    save_every: Count = 1                      # steps between checkpoints: at most so many are ever lost
    rollouts_every: Count = 20                 # steps between saved rollouts with their reward arithmetic
    logprob_gap: Positive | None = None        # mean log-prob gap, engine to trainer, that stops; none = 1e-4, GPU 0.02
    plan: bool = False                         # print the memory that a process would need, and stop: nothing is loaded
    device: Device = "auto"                    # auto = a GPU if there is one

    def __post_init__(self):
        toy = self.data == "toyweb"
        if self.evaluate_questions is None:
            object.__setattr__(self, "evaluate_questions", 128 if toy else 0)          # in run.json, too
        check(self)
        check_tools(None if toy else self.data, self.tools, "--data")
        check_preset(self)
        if not toy and (self.hops, self.slack) != (4, 0):
            raise ConfigError("--hops and --slack are of the toy web: leave them out for a file of questions")
        if self.minibatches > self.questions * self.group:
            raise ConfigError(f"{self.minibatches} minibatches of {self.questions * self.group} rollouts")
        if self.pack_tokens < self.max_context:
            raise ConfigError(f"pack_tokens {self.pack_tokens} must hold a rollout of max_context {self.max_context}")
        if self.judge and self.outcome != "em":
            raise ConfigError(f"judge gives the outcome by itself: leave outcome {self.outcome} out")

    @property
    def web_seed(self) -> int:
        return self.seed if self.question_seed is None else self.question_seed
