"""python -m minvenus.experiments base | audit | demo | compare        --help after the word tells more"""

import signal
import sys
from collections.abc import Callable

from minvenus.experiments import audit, base, compare, demo
from minvenus.flags import parse_flags

COMMANDS: dict[str, tuple[type, Callable[..., object]]] = {
    "base": (base.BaseConfig, base.main), "audit": (audit.AuditConfig, audit.main), "demo": (demo.DemoConfig, demo.main),
    "compare": (compare.CompareConfig, compare.main)}
GO_ON = ("demo", "compare")                                  # what they have done so far stays


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in COMMANDS:
        print(f"usage: python -m minvenus.experiments {' | '.join(COMMANDS)}   [--help]", file=sys.stderr)
        return 2
    config, run = COMMANDS[argv[0]]
    try:
        print(run(parse_flags(config, argv[1:], description=config.__doc__)))
    except KeyboardInterrupt:
        kept = "; the same command goes on from there" if argv[0] in GO_ON else "; nothing was written"
        print(f"\n{argv[0]}: stopped{kept}", file=sys.stderr)
        return 130
    except (ValueError, OSError, RuntimeError) as error:
        print(f"{argv[0]}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):           # as Ctrl-C: no script may be left behind
        if signal.getsignal(number) != signal.SIG_IGN:       # nohup
            signal.signal(number, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
