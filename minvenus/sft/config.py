"""The options of `python -m minvenus.sft`, checked before any work begins."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minvenus.config import ConfigError, one_of
from minvenus.sft.files import input_files, optional


@dataclass(frozen=True)
class CleanConfig:
    """python -m minvenus.sft: raw or clean trajectories to training data."""

    in_: str = ""                                  # a .jsonl or .parquet file, or a folder of them
    out: str = ""                                  # the .jsonl or .parquet file to write
    stats: str = ""                                # where the counts go; empty = stats.json beside the output
    system_prompt: str | None = None               # a text file or a trajectory whose prompt to use; none = minvenus's own
    prompt_mode: Literal["template", "row"] = "template"       # the same prompt for all, or a record's own where it has one
    correct: Literal["off", "exact_match", "f1"] = "off"       # keep only trajectories whose answer is correct by this measure
    f1_threshold: float = 0.8                      # for --correct f1: the lowest F1 that counts as correct
    resample: bool = True                          # write trajectories of 51 to 100 turns twice, longer ones five times
    shuffle: bool = True                           # shuffle after resampling; otherwise the input's order, copies side by side
    seed: int = 42                                 # of the shuffle
    strict: bool = False                           # stop at the first line that is no record

    def __post_init__(self):
        if not self.in_ or not self.out:
            raise ConfigError("both --in FILE and --out FILE are needed")
        one_of("prompt_mode", self.prompt_mode, ("template", "row"))
        one_of("correct", self.correct, ("off", "exact_match", "f1"))
        if not 0.0 < self.f1_threshold <= 1.0:
            raise ConfigError(f"f1_threshold must lie in (0, 1], got {self.f1_threshold}")
        one_of("the ending of --out", Path(self.out).suffix, (".jsonl", ".parquet"))
        files = input_files(self.in_)
        names = [path.resolve() for path in (*files, Path(self.out), self.stats_path)]
        if len(set(names)) < len(names):
            raise ConfigError(f"{self.out} and {self.stats_path} must differ from each other and from the input")
        for file in (*files, Path(self.out)):
            if file.suffix == ".parquet":
                optional("pyarrow.parquet", file)           # now, not after an hour of cleaning

    @property
    def stats_path(self) -> Path:
        return Path(self.stats) if self.stats else Path(self.out).with_name("stats.json")
