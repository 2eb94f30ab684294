"""python -m minvenus.experiments.lab: in seconds, when and why IGPO helps, and when it shortens rollouts. Prints a table, writes a page."""

import sys
from pathlib import Path

from minvenus.experiments.lab.config import LabConfig
from minvenus.experiments.lab.page import page
from minvenus.experiments.lab.tables import compare, table
from minvenus.flags import parse_flags, save_config

PRESETS: dict[str, dict] = {
    "visits-only": {"searches": False, "visits": 5, "right": 0.35, "wrong": 0.50, "group_size": 8, "steps": 60,
                    "gains": "equal penalised noisy rising back front",
                    "methods": "grpo paper uncentred unnormalised unscaled gamma-1"},     # the others equal paper here
    "likely": {"right": 0.45, "wrong": 0.50},               # success is less rare at the start
    "no-slack": {"visits": 4},                              # one wrong visit and the question is lost
    "one-skill": {"shared": True},                          # what is learnt at one hop serves all of them
}


def main(argv: list[str] | None = None) -> int:
    config = parse_flags(LabConfig, argv, description="Reward and advantage code on a table policy with known gains.",
                         presets=PRESETS)
    try:
        results = compare(config, tell)
    except KeyboardInterrupt:
        print("\ninterrupted: nothing was written", file=sys.stderr)
        return 130
    print(table(config, results))
    try:
        save_config(config, config.out)
        path = Path(config.out) / "lab.html"
        path.write_text(page(config, results), encoding="utf-8")
    except OSError as error:
        print(f"the page could not be written: {error}", file=sys.stderr)
        return 1
    print(f"\ncurves: {path}")
    return 0


def tell(done: int, total: int, gains: str, method: str) -> None:
    """One line on a terminal that renews itself; nothing where nobody watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{done}/{total}  {gains}, {method}" if done < total else "\r\033[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
