"""make compare: GRPO and recipes of IGPO from one SFT checkpoint, with the same rollouts per step and the same
settings.

    make compare                                             four methods, eight seeds, two processes side by side
    python -m minvenus.experiments compare --methods "paper unscaled no-browse" --seeds 3 --hops 3

Compared are the accuracy on held-out questions after the last step, the area under its curve (its mean over the
evaluations), and the share of right pages found after the last step. A run that is stopped goes on where it was when
the command is given again; runs that are finished are only read.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from minvenus.config import ConfigError, check, read_json
from minvenus.console import Progress, table
from minvenus.experiments.results import differences, read_curves, rows, write_page
from minvenus.experiments.scripts import run_all, steps_done, train, trained
from minvenus.flags import save_config
from minvenus.settings import SFTConfig, check_model

METHODS = {                       # flags of train_igpo.py, beside those that all methods share
    "grpo": ("--no-use-gain",),                                   # outcomes only
    "paper": (),                                                  # IGPO as in the paper
    "released": ("--recipe", "released"),                         # IGPO as in the released code
    "uncentred": ("--no-center-gain",),                           # gains divided by their spread, not centred
    # ablations of `paper`
    "unnormalised": ("--normalize", "none"),                      # rewards as they are, no z-scores
    "unscaled": ("--normalize", "separate"),                      # z-scores without IG-Scale
    "no-browse": ("--browse", "off"),                             # a gain for every turn, searches too
    "no-penalty": ("--format-penalty", "0"),
    "gamma-1": ("--gamma", "1"),
    "reference": ("--gain-policy", "reference"),                  # gains from the frozen start checkpoint
    "token-mean": ("--aggregate", "token-mean"),
    # ... and of the others
    "uncentred-unscaled": ("--no-center-gain", "--normalize", "separate"),
    "grpo-gamma-1": ("--no-use-gain", "--gamma", "1"),
}
MAY_CHANGE = ("out", "methods", "seeds", "first_seed", "jobs")    # between two commands for one folder


@dataclass(frozen=True)
class CompareConfig:
    """python -m minvenus.experiments compare: methods side by side on the toy web, on fresh seeds."""

    model: str | None = None                 # the SFT checkpoint to start from; none = train one as `make demo` does
    out: str = "runs/compare"                # folder of the runs and the page
    methods: str = "grpo paper released uncentred"       # which ones, see METHODS in experiments/compare.py
    seeds: int = 8                           # runs of each method
    first_seed: int = 200                    # seeds count up from here
    steps: int = 40                          # of each run; an evaluation every 10, and after the last
    hops: int | None = 4                     # of every question; none = 1, 2, 3 and 4 in turn
    slack: int = 0                           # turns beyond what is needed
    questions: int = 8                       # per step
    group: int = 4                           # rollouts of each question
    learning_rate: float = 6e-4              # of all methods
    jobs: int = 2                            # processes at the same time, of one thread each

    def __post_init__(self):
        check(self)
        check_names("methods", self.methods, METHODS)
        if self.model is not None:
            check_model(self.model)


def check_names(setting: str, given: str, known: Collection[str]) -> None:
    """Raise unless a setting is names out of `known` with spaces between, each once."""
    names = given.split()
    if not names or len(set(names)) < len(names) or not set(names) <= set(known):
        raise ConfigError(f"{setting} must be some of {' '.join(known)}, each once; got {given!r}")


def main(config: CompareConfig) -> str:
    folder = Path(config.out)
    check_settings(config, folder / "run.json")
    start = Path(config.model) if config.model else train("train_sft.py", folder / "sft", SFTConfig.steps)
    save_config(config, folder)
    methods = config.methods.split()
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    jobs = {}
    for seed in seeds:
        for method in methods:
            jobs[f"{method}-{seed}"] = flags_of(config, start, method, seed)
    run_missing(jobs, config)
    runs = {method: {seed: read_curves(folder / f"{method}-{seed}") for seed in seeds} for method in methods}
    text = table(rows(runs, config.steps))
    if len(methods) > 1:
        text += "\n\n" + table(differences(runs, config.steps))
    return f"{text}\n\npage: {write_page(folder / 'report.html', runs, config.steps, asdict(config))}"


def check_settings(config: CompareConfig, saved: Path) -> None:
    """Refuse a folder with runs of other settings: they would be read as if they had these."""
    before = read_json(saved) if saved.exists() else {}
    changed = [f"{key} was {before[key]!r}, is {now!r}" for key, now in asdict(config).items()
               if key in before and key not in MAY_CHANGE and before[key] != now]
    if changed:
        raise ConfigError(f"{saved.parent} holds runs with other settings: {'; '.join(changed)}. "
                          "Use the same, or another --out")


def flags_of(config: CompareConfig, start: Path, method: str, seed: int) -> tuple:
    """The flags of train_igpo.py for one run."""
    shared = ("--model", start, "--out", Path(config.out) / f"{method}-{seed}", "--seed", seed, "--steps", config.steps,
              "--hops", config.hops, "--slack", config.slack, "--questions", config.questions, "--group", config.group,
              "--learning-rate", config.learning_rate, "--evaluate-every", 10, "--rollouts-every", config.steps)
    return shared + METHODS[method]


def run_missing(jobs: dict[str, tuple], config: CompareConfig) -> None:
    """Run those that are not finished yet, and say how long the rest will take."""
    folder = Path(config.out)
    missing = {name: flags for name, flags in jobs.items() if steps_done(folder / name) < config.steps}
    print(f"{len(jobs)} runs of {config.steps} steps, {len(jobs) - len(missing)} of them done before", flush=True)
    progress = Progress("runs", 0, len(missing))
    done: list[str] = []

    def finished(name: str) -> None:
        trained(folder / name, config.steps)
        done.append(name)
        progress.show(len(done), {})

    run_all("train_igpo.py", missing, config.jobs, folder, finished)
