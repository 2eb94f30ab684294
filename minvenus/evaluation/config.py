"""Which settings make an evaluation another one, and the settings that depend on the machine and the model."""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

from minvenus.agent.policy import model_folder
from minvenus.config import ConfigError
from minvenus.model.weights import device_of
from minvenus.settings import EvalConfig


def resolved(config: EvalConfig) -> EvalConfig:
    """Every choice made that depends on others: the folder of the newest model, sampling, sizes."""
    agent = config.agent
    if agent.api_base is None:
        agent = replace(agent, model=str(model_folder(agent) or "tiny"), device=device_of(agent.device))
    agent = agent.resolved()
    if config.runs > 1 and agent.temperature == 0:
        raise ConfigError(f"{config.runs} runs with temperature 0 would all be the same: give a --temperature")
    return replace(config, agent=agent, limit=config.limit or (128 if agent.tools == "toyweb" else None),
                   concurrency=config.concurrency or (64 if agent.tiny else 8))


# What may be another when an evaluation goes on: how much of it, how fast, at which address, and what is shown.
MAY_CHANGE = ("limit", "runs", "concurrency", "pages", "api_base", "published", "json", "out", "redo_failed", "regrade",
              "compare", "xray", "group", "answer")
GRADING = ("score", "f1_at_least", "judge")              # another with --regrade only


def identity(config: EvalConfig, questions: str, system: str, judge: str | None) -> dict:
    """What all runs of an evaluation have in common, as JSON. `config` is resolved; `questions` is the fingerprint of all that
    could be asked, `judge` the judge's model. Files count by what they hold, not by their names."""
    by_content = ("questions", "system_prompt", "model")
    every = asdict(config)
    every |= every.pop("agent")
    values = {key: value for key, value in every.items() if key not in (*MAY_CHANGE, *by_content)}
    if config.judge or config.score == "em":
        del values["f1_at_least"]
    return values | {"judge": judge, "questions": questions, "system_prompt": digest(system), "model": fingerprint(config.agent.model)}


def fingerprint(model: str) -> str:
    """Tells whether a folder still holds the model that it held: the sizes of its files and 64 blocks of each, because reading
    all of a large model would take long."""
    folder = Path(model)
    if model == "tiny":
        return "tiny, random weights"
    found = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")]):
        size = path.stat().st_size
        found.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            for start in sorted({size * i // 64 for i in range(64)}):
                file.seek(start)
                found.update(file.read(1 << 14))
    return found.hexdigest()[:16]


def digest(value) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def refuse_changes(saved: dict, now: dict, where, regrade: bool) -> None:
    """Runs under two settings are no evaluation of either."""
    ignored = GRADING if regrade else ()
    changed = [f"{key} was {saved.get(key)!r}, is {now.get(key)!r}" for key in sorted(saved.keys() | now.keys())
               if saved.get(key) != now.get(key) and key not in ignored]
    if changed:
        graded = all(entry.split()[0] in GRADING for entry in changed)
        way = "--regrade grades the same runs again" if graded else "use the same, or another --out"
        raise ConfigError(f"{where} holds runs with other settings: {'; '.join(changed)}. To go on, {way}")


def default_folder(config: EvalConfig, identity: dict) -> Path:
    """Below runs/eval, by the model's name and the settings: other settings never meet in one folder."""
    parts = [part for part in Path(config.agent.api_model or config.agent.model).parts if part not in ("/", "runs", "checkpoints", "model")]
    name = "-".join("".join(c if c.isalnum() or c in "-_." else "-" for c in part) for part in parts[-2:]) or "model"
    return Path("runs/eval", f"{name}-{digest({k: v for k, v in identity.items() if k not in GRADING})[:8]}")
