"""The settings of the training scripts and their presets."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minvenus.config import ConfigError, one_of


@dataclass(frozen=True)
class SFTConfig:
    """train_sft.py: supervised fine-tuning on trajectories."""

    data: str = "toyweb"                             # "toyweb" (generated demonstrations) or a .jsonl from python -m minvenus.sft
    model: str = "tiny-base"                         # "tiny-base", "tiny" (random weights) or the folder of a Qwen3 checkpoint
    out: str = "runs/sft"                            # the run's folder: checkpoints, metrics, settings
    resume: Literal["auto", "never"] = "auto"        # auto = go on from the run's latest checkpoint if it has one
    seed: int = 0                                    # of random weights, demonstrations and the order of the data
    steps: int = 250                                 # optimiser steps
    batch: int = 16                                  # trajectories per step
    pack_tokens: int = 8192                          # tokens of one forward pass at most; memory, not mathematics
    max_tokens: int = 4096                           # longest trajectory
    overlong: Literal["drop", "truncate"] = "drop"   # longer ones are dropped, or cut behind their last turn that fits
    reduction: Literal["trajectory-mean", "token-mean", "sum"] = "token-mean"    # how tokens are weighed; see SFT_PRESETS
    learning_rate: float = 1e-3                      # peak
    warmup: float = 0.1                              # share of the steps
    beta2: float = 0.95                              # of AdamW; beta1 is 0.9
    weight_decay: float = 0.01                       # on all parameters
    clip: float = 1.0                                # gradients are scaled down to this norm
    recompute: bool = False                          # keep only layer inputs and compute the rest again: less memory, slower
    validation: int = 64                             # trajectories held out of the training data
    validate_every: int = 50                         # steps between validations
    save_every: int = 50                             # steps between checkpoints
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto = a GPU if there is one
    demonstrations: int = 768                        # toyweb: how many
    hops: int = 4                                    # toyweb: questions of 1 to this many hops
    wrong_result: float = 0.5                        # toyweb: how often the teacher opens a wrong result first
    wrong_relation: float = 0.3                      # toyweb: how often it follows a wrong link first
    at_once: float = 0.03                            # toyweb: how often it answers at once, by guessing
    stop_early: float = 0.05                         # toyweb: how often it answers before the last hops, and guesses those
    cut_off: float = 0.5                             # toyweb: how often its turns are limited, and it is told before the last one
    replay: float = 0.25                             # toyweb: share of texts from the base's training, against forgetting names

    def __post_init__(self):
        for name in ("steps", "batch", "pack_tokens", "max_tokens", "validate_every", "save_every", "demonstrations"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.pack_tokens < self.max_tokens:
            raise ConfigError(f"pack_tokens ({self.pack_tokens}) must hold a trajectory of max_tokens ({self.max_tokens})")
        one_of("hops", self.hops, (1, 2, 3, 4))
        if not 0 <= self.replay < 1:
            raise ConfigError(f"replay is a share from 0 to below 1, got {self.replay}")
        if not 0 <= self.warmup <= 1:
            raise ConfigError(f"warmup is a share of the steps from 0 to 1, got {self.warmup}")
        if not (self.learning_rate > 0 and self.clip > 0 and self.weight_decay >= 0 and 0 <= self.beta2 < 1):
            raise ConfigError("learning_rate and clip must be > 0, weight_decay >= 0 and beta2 in [0, 1)")
        if self.validation < 0:
            raise ConfigError(f"validation must be >= 0, got {self.validation}")
        if self.data != "toyweb" and not Path(self.data).is_file():
            raise ConfigError(f"data must be 'toyweb' or a .jsonl file; got {self.data!r}")
        check_model(self.model)


def check_model(model: str) -> None:
    if model not in ("tiny", "tiny-base") and not (Path(model) / "config.json").is_file():
        raise ConfigError(f"model must be 'tiny-base', 'tiny' or a folder with a config.json; got {model!r}")


# The release's SFT settings (one epoch over 18,745 trajectories is 585 steps); needs a GPU of a large machine. There every
# trajectory weighs the same. On the toy web that would give the few that answer at once, 15 times shorter than the others, 15
# times the say in whether to search at all: the tiny model then answers a quarter of its questions at once.
SFT_PRESETS = {
    "tiny": {},
    "dr-venus-4b": {"steps": 585, "batch": 32, "pack_tokens": 200_000, "max_tokens": 200_000, "learning_rate": 1e-5,
                    "reduction": "trajectory-mean", "recompute": True},
}
