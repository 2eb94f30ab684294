"""From the word behind --tools to a tool set."""

from minvenus.config import ConfigError
from minvenus.tools.cassette import Recorder, Replay
from minvenus.tools.folder import FolderTools
from minvenus.tools.web import LiveTools, check_environment

SPECS = ("toyweb", "folder:PATH", "live", "record:FILE", "replay:FILE")


def make_tools(spec: str, seed: int = 0):
    """A tool set as base.py describes it. `seed` is the toy web's. An impossible spec is a ConfigError of one line."""
    kind, _, path = spec.partition(":")
    if spec not in ("toyweb", "live") and not (kind in ("folder", "record", "replay") and path):
        raise ConfigError(f"tools must be one of {', '.join(SPECS)}; got {spec!r}")
    if kind in ("live", "record"):
        check_environment()
    if kind == "live":
        return LiveTools()
    if kind == "record":
        return Recorder(LiveTools(), path)
    if kind == "replay":
        return Replay(path)
    if kind == "folder":
        return FolderTools(path)
    from minvenus.tools.toyweb import ToyWeb
    return ToyWeb(seed)
