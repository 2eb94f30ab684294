"""python -m minvenus.experiments COMMAND    --help after the command tells more"""

import signal
import sys
from collections.abc import Callable

from minvenus.console import one_line_errors, table
from minvenus.experiments import audit, base, calculator, compare, demo, lab
from minvenus.experiments.methods import PRESETS
from minvenus.flags import parse_flags

COMMANDS: dict[str, tuple[type, Callable[..., object]]] = {
    "demo": (demo.DemoConfig, demo.main),
    "compare": (compare.CompareConfig, compare.main),
    "lab": (lab.LabConfig, lab.main),
    "audit": (audit.AuditConfig, audit.main),
    "credit": (calculator.CreditConfig, calculator.main),
    "base": (base.BaseConfig, base.main),
}


def main(argv: list[str]) -> None:
    if not argv or argv[0] not in COMMANDS:
        show_commands(asked=argv[:1] in (["-h"], ["--help"]))

    name, *flags = argv
    config, command = COMMANDS[name]
    if name == "credit" and flags and not flags[0].startswith("-"):
        flags = ["--file", *flags]                           # the file may be the first word
    description = sys.modules[config.__module__].__doc__
    with one_line_errors(name):
        print(command(parse_flags(config, flags, description, PRESETS, command=name)))


def show_commands(asked: bool) -> None:
    """Print the commands and exit."""
    commands = []
    for name, (config, _) in COMMANDS.items():
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
