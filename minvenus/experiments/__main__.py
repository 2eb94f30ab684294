"""python -m minvenus.experiments COMMAND    --help after the command tells more"""

import signal
import sys
from collections.abc import Callable

from minvenus.console import one_line_errors, table
from minvenus.experiments import audit, base, calculator, compare, demo, lab, pictures, theory
from minvenus.flags import parse_flags

COMMANDS: dict[str, tuple[type, Callable[..., object]]] = {
    "demo": (demo.DemoConfig, demo.main),
    "compare": (compare.CompareConfig, compare.main),
    "lab": (lab.LabConfig, lab.main),
    "theory": (theory.TheoryConfig, theory.main),
    "audit": (audit.AuditConfig, audit.main),
    "credit": (calculator.CreditConfig, calculator.main),
    "pictures": (pictures.PicturesConfig, pictures.main),
    "base": (base.BaseConfig, base.main),
}


def main(argv: list[str]) -> None:
    if not argv or argv[0] not in COMMANDS:
        asked = argv[:1] in (["-h"], ["--help"])
        listed = [[f"  {name}", str(config.__doc__).partition(": ")[2]] for name, (config, _) in COMMANDS.items()]
        print(f"usage: {__doc__}\n\n{table(listed, left=True)}", file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else 2)
    name, *flags = argv
    config, run = COMMANDS[name]
    told = sys.modules[config.__module__].__doc__
    if name == "credit" and flags and not flags[0].startswith("-"):
        flags = ["--file", *flags]
    with one_line_errors(name):
        print(run(parse_flags(config, flags, told, compare.PRESETS, command=name)))


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):           # as Ctrl-C: no script may be left behind
        if signal.getsignal(number) != signal.SIG_IGN:       # nohup
            signal.signal(number, signal.default_int_handler)
    main(sys.argv[1:])
