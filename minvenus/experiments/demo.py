"""make demo: the whole pipeline in minutes, each step the command that a reader would give.

    base (in the repository) -> SFT on few, partly weak demonstrations -> IGPO -> the same held-out
    questions before and after -> what the gains rewarded -> one question answered live -> a report

Names on the pages of test questions occur in no demonstration and in no RL question. The texts of
the base, and their replay in SFT, have all names, but no web of a test question. RL asks other
questions than the demonstrations answer. Given again, the command goes on where it was stopped.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from minvenus.config import check
from minvenus.console import clock
from minvenus.experiments import audit
from minvenus.experiments.compare import CompareConfig, run, train
from minvenus.report.run_page import write_run_page
from minvenus.setting import setting
from minvenus.train.settings import SFTConfig

RECIPE = "uncentred"


@dataclass(frozen=True)
class DemoConfig:
    """python -m minvenus.experiments demo: base, SFT, IGPO, evaluation, one question, report."""

    out: str = setting("runs/demo", "folder of everything that it makes")
    sft_steps: int = setting(SFTConfig.steps, "optimiser steps on demonstrations", least=1)
    igpo_steps: int = setting(60, "batches of rollouts", least=1)
    batch: int = setting(8, "questions of a batch, 4 rollouts each", least=1)
    questions: int = setting(
        256, "held-out ones, 1 to 4 hops, asked before and after", least=1, most=256)

    def __post_init__(self):
        check(self)


def main(config: DemoConfig) -> str:
    began = time.monotonic()
    out = Path(config.out)
    if out.exists():
        print(f"{out} exists: what is finished there is shown again, the rest goes on. "
              "Remove it to start anew.")

    heading("1. SFT: the base learns the task from few demonstrations, many of them with detours")
    sft = train("train_sft.py", out / "sft", config.sft_steps)

    heading("2. IGPO: one to four hops, no turn to spare; a visit is rewarded by what it taught")
    print(f"recipe {RECIPE}, without the penalty for malformed turns (minvenus/igpo/recipes.py)")
    igpo = train(
        "train_igpo.py", out / "igpo", config.igpo_steps,
        model=sft,
        seed=1,
        hops=None,
        recipe=RECIPE,
        format_penalty=None,
        learning_rate=CompareConfig.learning_rate,
        questions=config.batch,
        evaluate_every=config.igpo_steps,
        evaluate_questions=min(64, config.questions),
    )

    heading("3. Held-out questions before and after: one sampled run each, no turn to spare")
    for name, model in (("SFT", sft), ("IGPO", igpo)):
        results = out / "eval" / name
        run("eval.py", model=model, out=results, limit=config.questions, temperature=1, slack=0,
            seed=1)
    run("eval.py", compare=(out / "eval" / "SFT", out / "eval" / "IGPO"))

    heading("4. What the gains rewarded, at the first and at the last step")
    print(audit.main(audit.AuditConfig(run=str(out / "igpo"))))

    heading("5. One question, live")
    run("infer.py", model=igpo, question="test-3", out=out / "infer")

    page = write_run_page(out / "igpo")
    return f"\nreport: {page}\nall of it took {clock(time.monotonic() - began)} in this run"


def heading(words: str) -> None:
    print(f"\n{words}\n{'-' * len(words)}", flush=True)
