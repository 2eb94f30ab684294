"""python -m minvenus.experiments COMMAND    --help after the command tells more"""

import signal
import sys

from minvenus.console import one_line_errors, show_result, table
from minvenus.experiments import (
    audit,
    base,
    calculator,
    compare,
    demo,
    factbook,
    lab,
    real,
    smollm2,
)
from minvenus.experiments.methods import PRESETS
from minvenus.flags import parse_flags

COMMANDS = {                   # name -> the settings of a module with a main(settings)
    "demo": demo.DemoConfig,
    "compare": compare.CompareConfig,
    "lab": lab.LabConfig,
    "audit": audit.AuditConfig,
    "credit": calculator.CreditConfig,
    "base": base.BaseConfig,
    "smollm2": smollm2.SmolLM2Config,
    "factbook": factbook.FactbookConfig,
    "real": real.RealConfig,
}


def main(argv: list[str]) -> None:
    if not argv or argv[0] not in COMMANDS:
        show_commands(asked=argv[:1] in (["-h"], ["--help"]))

    name, *flags = argv
    module = sys.modules[COMMANDS[name].__module__]
    if name == "credit" and flags and not flags[0].startswith("-"):
        flags = ["--file", *flags]                           # the file may be the first word
    with one_line_errors(name):
        program = f"python -m minvenus.experiments {name}"
        settings = parse_flags(COMMANDS[name], flags, module.__doc__, PRESETS, program)
        show_result(f"{module.main(settings)}\n")


def show_commands(asked: bool) -> None:
    """Print the commands and exit."""
    commands = []
    for name, config in COMMANDS.items():
        _, _, description = str(config.__doc__).partition(": ")
        commands.append([f"  {name}", description])
    usage = f"usage: {__doc__}\n\n{table(commands, left=True)}"
    print(usage, file=sys.stdout if asked else sys.stderr)
    sys.exit(0 if asked else 2)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):           # as Ctrl-C: no script is left behind
        if signal.getsignal(number) != signal.SIG_IGN:       # nohup
            signal.signal(number, signal.default_int_handler)
    main(sys.argv[1:])
