"""The settings of train_igpo.py and their presets."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minvenus.config import ConfigError, Recipe, one_of
from minvenus.igpo.loss import AGGREGATIONS, check_clips
from minvenus.train.config import check_model


@dataclass(frozen=True)
class IGPOConfig:
    """train_igpo.py: reinforcement learning on questions."""

    model: str = "tiny-base"                         # the folder of the start checkpoint; "tiny-base", "tiny" = random weights
    data: str = "toyweb"                             # "toyweb" or a .jsonl, .parquet or BrowseComp .csv file of questions
    tools: str = "toyweb"                            # toyweb; for a file folder:PATH, live, record:FILE or replay:FILE
    system_prompt: str | None = None                 # a text file, or a trajectory whose prompt to use; none = minvenus's own
    out: str = "runs/igpo"                           # the run's folder: checkpoints, metrics, rollouts, settings
    resume: Literal["auto", "never"] = "auto"        # auto = go on from the run's latest checkpoint if it has one
    seed: int = 0                                    # of the questions' order and of all sampling
    recipe: Recipe = Recipe()                        # how rewards become advantages; each of its fields has a flag of its own
    gain_policy: Literal["current", "reference"] = "current"     # who is asked for the gains: the policy, or the start checkpoint
    steps: int = 80                                  # batches of rollouts
    questions: int = 8                               # per step
    group: int = 4                                   # rollouts of each question
    epochs: int = 1                                  # passes over a batch
    minibatches: int = 1                             # optimiser steps per pass
    learning_rate: float = 6e-4                      # constant
    weight_decay: float = 0.01                       # on all parameters
    clip: float = 1.0                                # gradients are scaled down to this norm
    clip_low: float = 0.2                            # the ratio is clipped to 1 - clip_low ...
    clip_high: float = 0.2                           # ... and 1 + clip_high
    dual_clip: float | None = None                   # cap of the ratio of bad tokens; none = no cap
    kl_coef: float = 0.001                           # weight of the KL term to the start checkpoint; 0 = no reference policy
    aggregate: Literal["seq-mean-token-mean", "token-mean", "seq-mean-token-sum"] = "seq-mean-token-mean"   # weights of tokens
    outcome: Literal["em", "f1"] = "em"              # reward of the answer, compared with the accepted ones
    judge: bool = False                              # or ask an LLM judge: JUDGE_BASE_URL, JUDGE_MODEL, JUDGE_API_KEY
    judge_cache: str | None = None                   # SQLite file of its verdicts; none = judge.sqlite in the run's folder
    temperature: float = 1.0                         # of sampling, and of the log-probs that are trained
    top_p: float = 1.0                               # of sampling; below 1 the trained log-probs are those of the whole softmax
    max_turns: int = 200                             # per rollout; on the toy web what the hops need, and the slack
    max_turn_tokens: int = 48                        # sampled in one turn
    max_context: int = 768                           # tokens of a rollout
    max_observation_tokens: int = 8192               # longer results of tools are cut
    tool_seconds: float = 150.0                      # seconds for one call of a live tool
    tool_threads: int = 16                           # calls of live tools at once; others run in the loop, reproducibly
    pages: int = 2048                                # of the cache
    page_size: int = 16                              # tokens of a page
    pack_tokens: int = 4096                          # tokens of one training forward at most; memory, not mathematics
    recompute: bool = False                          # keep only layer inputs and compute the rest again: less memory, slower
    hops: int | None = 4                             # toy web: hops of every question; none = 1, 2, 3 and 4 in turn
    slack: int = 0                                   # toy web: turns beyond what is needed
    evaluate_every: int = 20                         # steps between evaluations on held-out questions; before the first, too
    evaluate_questions: int | None = None            # how many; of a file the first ones; none = 128, of a file 0 = no evaluation
    save_every: int = 1                              # steps between checkpoints: so many are lost at most, whatever happens
    rollouts_every: int = 20                         # steps between saved rollouts with their reward arithmetic
    logprob_gap: float = 0.01                        # stop when new and stored log-probs differ by more before the first update
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto = a GPU if there is one

    def __post_init__(self):
        self.check_data()
        for name in ("steps", "questions", "epochs", "minibatches", "max_turns", "max_turn_tokens", "max_context", "pages",
                     "page_size", "pack_tokens", "evaluate_every", "save_every", "rollouts_every", "tool_threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.group < 2:
            raise ConfigError(f"group must be at least 2 to compare rollouts of a question, got {self.group}")
        if self.minibatches > self.questions * self.group:
            raise ConfigError(f"{self.minibatches} minibatches of {self.questions * self.group} rollouts")
        if not (self.learning_rate > 0 and self.clip > 0 and self.weight_decay >= 0 and self.kl_coef >= 0):
            raise ConfigError("learning_rate and clip must be > 0, weight_decay and kl_coef >= 0")
        if self.pack_tokens < self.max_context:
            raise ConfigError(f"pack_tokens ({self.pack_tokens}) must hold a rollout of max_context ({self.max_context})")
        check_clips(self.clip_low, self.clip_high, self.dual_clip)
        if self.judge and self.outcome != "em":
            raise ConfigError(f"judge gives the outcome by itself: leave outcome {self.outcome} out")
        if self.judge_cache and not self.judge:
            raise ConfigError("judge_cache is only for --judge")
        if not self.temperature > 0:
            raise ConfigError(f"temperature must be > 0: greedy rollouts of a group are all the same; got {self.temperature}")
        one_of("hops", self.hops, (1, 2, 3, 4, None))
        one_of("aggregate", self.aggregate, AGGREGATIONS)
        check_model(self.model)

    def check_data(self):
        """Questions and tools that belong together, and how many questions are held out if nobody said."""
        toy = self.data == "toyweb"
        if toy and self.tools != "toyweb":
            raise ConfigError(f"--tools {self.tools} needs a file of questions: give --data FILE")
        if not toy and self.tools == "toyweb":
            raise ConfigError("the toy web answers its own questions only: choose other --tools for a file, such as folder:PATH")
        if not toy and not Path(self.data).is_file():
            raise ConfigError(f"data must be 'toyweb' or a file of questions; got {self.data!r}")
        if not toy and (self.hops, self.slack) != (4, 0):
            raise ConfigError("--hops and --slack are of the toy web: leave them out for a file of questions")
        if self.evaluate_questions is None:
            object.__setattr__(self, "evaluate_questions", 128 if toy else 0)         # in run.json, too
        if self.evaluate_questions < (1 if toy else 0):
            raise ConfigError(f"evaluate_questions must be at least {1 if toy else 0}, got {self.evaluate_questions}")


# The paper's recipe for the 4B model. It needs --model FOLDER --data FILE --tools live --judge beside it, and their keys.
# 16 questions x 8 rollouts, up to 200 turns of 8,192 tokens in 256K; one epoch over 1,000 questions is 62 steps. The cache holds
# one of the longest rollouts, others wait for room. On a GPU the trainer computes in bfloat16 and the engine in the weights' own
# type, float32: their log-probs differ by more than its rounding. About 160 GB in all: 78 the cache (0.3 MB a token), 64 weights,
# gradients and AdamW, 16 the reference. Never run; with less memory, lower pages and max_context.
IGPO_PRESETS = {
    "tiny": {},
    "dr-venus-4b": {"steps": 62, "questions": 16, "group": 8, "learning_rate": 1e-6, "max_turns": 200, "max_turn_tokens": 8192,
                    "max_context": 262_144, "pages": 1032, "page_size": 256, "pack_tokens": 262_144, "recompute": True,
                    "logprob_gap": 1.0},
}
