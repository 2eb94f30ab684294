"""The settings of train_sft.py and train_igpo.py. The defaults are those of the tiny model;
presets.py has named values for others.

Every field has its default, its help text and the limits of its number; `heading` begins a group
of flags (flags.py makes the command line from this). A field without a help text is no flag.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from minvenus.config import MODELS, ConfigError, ModelConfig, check
from minvenus.igpo.loss import LossConfig
from minvenus.igpo.recipes import Recipe
from minvenus.setting import setting
from minvenus.settings import ASKS, Asks, Device, Hops, Like, check_temperature, check_tools

Preset = Literal["tiny", "smollm2", "qwen3-0.6b", "qwen3-4b-lora", "dr-venus-4b"]
PAGE_SIZE = 16                        # tokens of a page of the cache, in training


@dataclass(frozen=True)
class SFTConfig:
    """train_sft.py: supervised fine-tuning on trajectories."""

    preset: Preset = setting("tiny", "a named set of values for a model and a card: docs/scale.md",
        heading="run")
    model: str = setting("tiny-base",
        '"tiny-base", "tiny" (random weights) or a folder: Qwen3, Qwen2 or Llama')
    out: str = setting("runs/sft", "the run's folder: checkpoints, metrics, settings")
    seed: int = setting(0, "of random weights, demonstrations and the order of the data")
    steps: int = setting(250, "optimiser steps", least=1)
    evaluate_every: int = setting(50, "steps between validations", least=1)
    save_every: int = setting(50, "steps between checkpoints", least=1)
    plan: bool = setting(False, "print the memory that a process would need; nothing is loaded")
    device: Device = setting("auto", "auto = a GPU if there is one")

    data: str = setting("toyweb",
        '"toyweb" (made demonstrations) or a .jsonl of python -m minvenus.sft', heading="data")
    like: Like | None = setting(None,
        "the model will be run as this one is; none = as the start's agent.json says")
    max_tokens: int = setting(4096, "longest trajectory; longer ones are dropped", least=1)
    validation: int = setting(64, "trajectories held out of the training data", least=0)

    batch: int = setting(16, "trajectories per step", heading="update", least=1)
    reduction: Literal["trajectory-mean", "token-mean"] = setting("token-mean",
        "mean of the loss: first within each trajectory, or over all tokens")
    learning_rate: float = setting(1e-3, "its peak, after the warm-up", above=0)
    warmup: float = setting(0.1, "share of the steps", least=0, most=1)
    # no flags, as nobody changes them; a file given to --config may
    weight_decay: float = setting(0.01, "", least=0)      # on all parameters
    clip: float = setting(1.0, "", above=0)               # longer gradients are cut to this norm
    lora_rank: int = setting(0,
        "train adapters of this rank, not the weights; 0 = train all weights", least=0)

    pack_tokens: int = setting(8192, "tokens of one forward pass at most; changes no result",
        heading="memory", least=1)
    recompute: bool = setting(False,
        "keep only layer inputs, compute the rest again: less memory, slower")
    offload: bool = setting(False, "with --recompute: keep the layer inputs in host memory")

    demonstrations: int = setting(768, "how many there are", heading="toy web", least=1)
    most_hops: Hops = setting(4, "of 1, 2, ... so many hops in turn")
    asks: Asks = setting("every", ASKS)
    wrong_result: float = setting(0.5,
        "how often their teacher opens a wrong result first, per hop", least=0, most=1)
    replay: float = setting(0.25, "share of the base's texts, against forgetting names", least=0,
        below=1)

    def __post_init__(self):
        check(self)
        if self.pack_tokens < self.max_tokens:
            raise ConfigError(
                f"pack_tokens {self.pack_tokens} must hold a trajectory of "
                f"max_tokens {self.max_tokens}"
            )
        check_training(self)


@dataclass(frozen=True)
class IGPOConfig:
    """train_igpo.py: reinforcement learning on questions."""

    preset: Preset = setting("tiny", "a named set of values for a model and a card: docs/scale.md",
        heading="run")
    model: str = setting("tiny-base",
        'folder of the start checkpoint, "tiny-base" or "tiny" (random weights)')
    out: str = setting("runs/igpo", "the run's folder: checkpoints, metrics, rollouts, settings")
    seed: int = setting(0, "of all sampling")
    steps: int = setting(80, "batches of rollouts", least=1)
    evaluate_every: int = setting(20,
        "steps between evaluations on held-out questions; also at the start", least=1)
    save_every: int = setting(1, "steps between checkpoints: at most so many are ever lost",
        least=1)
    rollouts_every: int = setting(20, "steps between saved rollouts with their reward arithmetic",
        least=1)
    plan: bool = setting(False, "print the memory that a process would need; nothing is loaded")
    device: Device = setting("auto", "auto = a GPU if there is one")

    data: str = setting("toyweb",
        '"toyweb" or a .jsonl, .parquet or BrowseComp .csv file of questions', heading="data")
    tools: str = setting("toyweb",
        "toyweb; for a file folder:PATH, almanac:PATH, live, record:FILE or replay:FILE")
    tool_seconds: float = setting(450.0,
        "seconds for one call of a live tool: a page 120, its extraction 300", above=0)
    like: Like | None = setting(None,
        "run the model as this one is run; none = as its agent.json says")
    system_prompt: str | None = setting(None,
        "a text file, or a trajectory whose prompt to use; none = as --like says")
    questions: int = setting(8, "per step", least=1)
    group: int = setting(4, "rollouts of each question", least=2)
    evaluate_questions: int | None = setting(None,
        "held-out questions, a file's first; none = 128, of a file 0", least=0)

    recipe: Recipe = setting(Recipe(), "how rewards become advantages; single fields:",
        heading="rewards")
    gain_policy: Literal["current", "reference"] = setting("current",
        "the model that scores the truth: the policy, or its start checkpoint")
    outcome: Literal["em", "f1"] = setting("em",
        "reward of the answer, compared with the accepted ones")
    judge: bool = setting(False, "an LLM judge instead: JUDGE_BASE_URL, JUDGE_MODEL, JUDGE_API_KEY")

    temperature: float = setting(1.0, "of sampling, and of the log-probs that are trained",
        heading="sampling", above=0)
    top_p: float = setting(1.0, "of sampling; trained log-probs are always of the whole softmax",
        above=0, most=1)
    max_turns: int | None = setting(None,
        "per rollout; none = 200, on the toy web what hops and slack need", least=1)
    max_turn_tokens: int = setting(48, "sampled in one turn", least=1)
    max_context: int = setting(768, "tokens of a rollout", least=1)
    max_observation_tokens: int = setting(8192, "longer results of tools are cut", least=64)

    epochs: int = setting(1, "passes over a batch", heading="update", least=1)
    minibatches: int = setting(1, "optimiser steps per pass", least=1)
    learning_rate: float = setting(6e-4, "constant", above=0)
    # no flags, as nobody changes them; a file given to --config may
    weight_decay: float = setting(0.01, "", least=0)      # on all parameters
    clip: float = setting(1.0, "", above=0)               # longer gradients are cut to this norm
    loss: LossConfig = LossConfig()
    lora_rank: int = setting(0,
        "train adapters of this rank, not the weights; 0 = train all weights", least=0)

    pages: int = setting(6144,
        "of the cache, 16 tokens each: 128 rollouts of the tiny model at once", heading="memory",
        least=1)
    expected_context: int | None = setting(None,
        "tokens that a rollout is expected to grow to; so many begin as fit; none = max_context",
        least=1)
    pack_tokens: int = setting(4096, "tokens of one training forward at most; changes no result",
        least=1)
    recompute: bool = setting(False,
        "keep only layer inputs, compute the rest again: less memory, slower")
    offload: bool = setting(False, "with --recompute: keep the layer inputs in host memory")

    hops: Hops | None = setting(4, "of every question; none = 1, 2, 3 and 4 in turn",
        heading="toy web")
    slack: int = setting(0, "turns beyond what is needed", least=0)
    asks: Asks = setting("every", ASKS)
    question_seed: int | None = setting(None,
        "of the web and of the questions' order; none = that of the sampling")

    def __post_init__(self):
        toy = self.data == "toyweb"
        if self.evaluate_questions is None:
            object.__setattr__(self, "evaluate_questions", 128 if toy else 0)  # run.json shows it
        check(self)
        check_temperature(self.temperature)
        check_tools(None if toy else self.data, self.tools, "--data")
        check_training(self)
        if not toy and (self.hops, self.slack, self.asks) != (4, 0, "every"):
            raise ConfigError(
                "--hops, --slack and --asks are of the toy web: leave them out for a file of "
                "questions"
            )
        if self.minibatches > self.questions * self.group:
            raise ConfigError(
                f"{self.minibatches} minibatches of {self.questions * self.group} rollouts"
            )
        if self.pack_tokens < self.max_context:
            raise ConfigError(
                f"pack_tokens {self.pack_tokens} must hold a rollout of "
                f"max_context {self.max_context}"
            )
        if self.judge and self.outcome != "em":
            raise ConfigError(
                f"judge gives the outcome by itself: leave outcome {self.outcome} out"
            )

    @property
    def web_seed(self) -> int:
        return self.seed if self.question_seed is None else self.question_seed


def check_training(config: SFTConfig | IGPOConfig) -> None:
    """The tiny model's settings are for no other: its learning rate would ruin a real model, its
    context would cut every rollout. A plan needs no more than the model's shape."""
    model = config.model
    if config.offload and not config.recompute:
        raise ConfigError("--offload keeps layer inputs in host memory: it needs --recompute")
    named = ("tiny", "tiny-base", *MODELS) if config.plan else ("tiny", "tiny-base")
    if model not in named and not (Path(model) / "config.json").is_file():
        raise ConfigError(
            "model must be 'tiny-base', 'tiny' or a folder with a config.json (of a training run: "
            "RUN/checkpoints/step-.../model), for a --plan also one of "
            f"{', '.join(MODELS)}; got {model!r}"
        )
    if config.preset == "tiny" and model_shape(model).hidden_size > MODELS["tiny"].hidden_size:
        others = ", ".join(name for name in get_args(Preset) if name != "tiny")
        raise ConfigError(
            f"{model} is not the tiny model, and preset tiny has the tiny model's learning rate, "
            f"context and turns: choose --preset from {others}; flags beside it change single "
            "values"
        )


def model_shape(model: str) -> ModelConfig:
    file = Path(model) / "config.json"
    if file.is_file():
        return ModelConfig.from_json(file)
    return ModelConfig.preset(model.removesuffix("-base"))
