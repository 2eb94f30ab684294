"""make demo: the whole pipeline in minutes, each step the command that a reader would give.

    base (in the repository) -> SFT on few, partly weak demonstrations -> IGPO -> the same held-out questions before and
    after -> what the gains rewarded -> one question answered live -> the report

Names on the pages of test questions occur in no demonstration and in no RL question. The texts of the base, and their
replay in SFT, have all names, but no web of a test question. RL asks other questions than the demonstrations answer.
Given again, the command goes on where it was stopped.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from minvenus.config import ConfigError, read_json
from minvenus.console import clock
from minvenus.experiments import audit
from minvenus.experiments.scripts import run, train
from minvenus.report.run_page import write_run_page
from minvenus.settings import SFTConfig
from minvenus.tools.toyweb import ToyWeb


@dataclass(frozen=True)
class DemoConfig:
    """python -m minvenus.experiments demo: base, SFT, IGPO, evaluation, one question, report."""

    out: str = "runs/demo"            # folder of everything that it makes
    sft_steps: int = SFTConfig.steps  # optimiser steps on demonstrations
    igpo_steps: int = 60              # batches of rollouts
    batch: int = 8                    # questions of a batch, 4 rollouts each
    questions: int = 256              # held-out ones, 1 to 4 hops, asked before and after
    seed: int = 0                     # of everything that is drawn

    def __post_init__(self):
        most = ToyWeb().size["test"]
        if min(self.sft_steps, self.igpo_steps, self.batch) < 1 or not 1 <= self.questions <= most:
            raise ConfigError(f"sft_steps, igpo_steps and batch must be at least 1, questions from 1 to {most}")


def main(config: DemoConfig) -> str:
    out, began = Path(config.out), time.monotonic()
    title("1. SFT: the base learns the task from few demonstrations, many of them with detours")
    sft = train("train_sft.py", out / "sft", config.sft_steps, "--seed", config.seed)

    title("2. IGPO: one to four hops, no turn to spare; every visit is rewarded by what it taught the model")
    igpo = train("train_igpo.py", out / "igpo", config.igpo_steps, "--model", sft, "--seed", config.seed + 1,
                 "--hops", "none", "--no-center-gain", "--questions", config.batch,
                 "--evaluate-every", config.igpo_steps, "--evaluate-questions", min(64, config.questions))

    title("3. Held-out questions before and after: one sampled run each, no turn to spare")
    for name, model in (("SFT", sft), ("IGPO", igpo)):
        run("eval.py", "--model", model, "--out", out / "eval" / name, "--limit", config.questions, "--temperature", 1,
            "--slack", 0, "--seed", config.seed + 1, quiet=True)
    run("eval.py", "--compare", out / "eval" / "SFT", out / "eval" / "IGPO")
    print(f"\n{changes(*(read_json(out / 'eval' / name / 'report.json') for name in ('SFT', 'IGPO')))}")

    title("4. What the gains rewarded, at the first and at the last step")
    print(audit.main(audit.AuditConfig(run=str(out / "igpo"))))

    title("5. One question, live")
    run("infer.py", "--model", igpo, "--question", "test-3", "--out", out / "infer")
    page = write_run_page(out / "igpo")
    return f"\nreport: {page}\nall of it took {clock(time.monotonic() - began)} in this run"


def changes(before: dict, after: dict) -> str:
    """What became better and what worse, in words; a change counts if the two 95 % intervals do not overlap."""
    found: dict[str, list[str]] = {"better": [], "worse": [], "not clearly different": []}
    for hops, old in before["by_hops"].items():
        new = after["by_hops"][hops]
        kind = "not clearly different"
        if new["low"] > old["high"]:
            kind = "better"
        elif new["high"] < old["low"]:
            kind = "worse"
        found[kind].append(f"{hops}-hop questions {old['value']:.0%} -> {new['value']:.0%}")
    lines = [f"{kind}: {', '.join(cases)}" for kind, cases in found.items() if cases]
    lines.append(f"format errors {before['malformed']:.1%} -> {after['malformed']:.1%} of turns")
    return "\n".join(lines)


def title(words: str) -> None:
    print(f"\n{words}\n{'-' * len(words)}", flush=True)
