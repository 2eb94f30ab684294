"""python -m minvenus.experiment base | audit | demo | compare        --help after the word tells more"""

import sys

from minvenus.experiment import audit, base, compare, demo
from minvenus.flags import parse_flags

COMMANDS = {"base": (base.BaseConfig, base.main), "audit": (audit.AuditConfig, audit.main), "demo": (demo.DemoConfig, demo.main),
            "compare": (compare.CompareConfig, compare.main)}


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in COMMANDS:
        print(f"usage: python -m minvenus.experiment {' | '.join(COMMANDS)}   [--help]", file=sys.stderr)
        return 2
    config, run = COMMANDS[argv[0]]
    try:
        print(run(parse_flags(config, argv[1:], description=config.__doc__)))
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, RuntimeError) as error:
        print(f"{argv[0]}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
