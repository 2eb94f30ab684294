"""The scripts as their users call them."""

from minvenus.console import one_line_errors
from minvenus.flags import parse_flags


def exit_code(main, config_class, argv: list[str]) -> int:
    """Of a script with these flags: what the last lines of each script do."""
    try:
        with one_line_errors("script.py"):
            main(parse_flags(config_class, argv))
    except SystemExit as ended:
        return ended.code
    return 0
