"""The settings of eval.py, and which of them make an evaluation another one."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal

from minvenus.config import ConfigError, InferConfig
from minvenus.loading import device_of, model_folder


@dataclass(frozen=True)
class EvalConfig:
    """eval.py: ask a policy a set of questions and count. What is none here is decided by `resolved`, or as in infer.py."""

    questions: str | None = None              # a .jsonl, .parquet or BrowseComp .csv file; none = the toy web's test questions
    limit: int | None = None                  # only the first so many questions; none = all, on the toy web 128
    runs: int = 1                             # k, runs of each question; may be raised later, what is there stays
    concurrency: int | None = None            # runs at once; none = 64 for the tiny model, else 8
    score: Literal["em", "f1"] = "em"         # what makes an answer right: exact match, or word F1 of at least --f1-at-least
    f1_at_least: float = 0.5                  # with --score f1
    judge: bool = False                       # an LLM decides instead: JUDGE_BASE_URL, JUDGE_MODEL and JUDGE_API_KEY say which
    compare: tuple[str, str] | None = None    # two finished evaluations, folders or files: B against A; nothing is run
    published: bool = False                   # print the published DR-Venus numbers, too
    xray: str | None = None                   # write the X-ray page of a rollout, trajectory or results file; nothing is run
    group: str | None = None                  # with --xray: only this question's id, or this group of a training file
    answer: str | None = None                 # with --xray: the true answer, scored by --model where the file has no values
    json: bool = False                        # print the report as one line of JSON, and nothing else
    out: str | None = None                    # folder of the evaluation, file of the page; none = runs/eval/NAME, FILE.html
    redo_failed: bool = False                 # make runs again that ended in an error, such as an endpoint's
    regrade: bool = False                     # grade all runs of the folder again, with another score or judge; none is run again
    model: str = "tiny"                       # folder of a Qwen3 checkpoint; "tiny" = the newest under runs/, else random weights
    tools: str = "toyweb"                     # toyweb, folder:PATH, live, record:FILE or replay:FILE
    hops: int | None = None                   # toyweb: only questions of so many hops; none = all
    slack: int | None = None                  # toyweb: turns allowed beyond those that a question needs; none = the web's own
    api_base: str | None = None               # a completion endpoint, such as http://localhost:8000/v1; none = run the model here
    api_model: str | None = None              # the endpoint's name for its model; --model then gives the tokenizer only
    system_prompt: str | None = None          # a text file, or a trajectory whose prompt to use; none = minvenus's own
    max_turns: int | None = None              # turns of the model; none = 200, on the toy web what the question needs
    max_context: int | None = None            # tokens of the whole conversation; none = 240,000 at an endpoint, else up to 40,960
    max_new_tokens: int | None = None         # tokens of one turn; none = 8192, 64 for the tiny model
    max_observation_tokens: int = 8192        # longer results of tools are cut
    time_limit: float | None = None           # seconds for one run; none = no limit
    tool_seconds: float = 150.0               # seconds for one tool call
    temperature: float | None = None          # 0 = always the most probable token; none = 1, for the tiny model 0
    top_p: float | None = None                # sample from the most probable tokens with this mass; none = 0.95, tiny 1
    top_k: int | None = None                  # and from so many of them, 0 = all; none = 20, tiny 0
    presence_penalty: float | None = None     # subtracted from the logits of what the turn has written; none = 1.1, tiny 0
    retries: int | None = None                # more attempts at a turn that is malformed or repeats itself; none = 4, tiny 0
    seed: int = 0                             # of the toy web, of random weights and of the sampling
    pages: int | None = None                  # of 64 tokens in the local model's cache; none = what the runs need, up to 4 GiB
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto = a GPU if there is one

    def __post_init__(self):
        for name in ("limit", "runs", "concurrency", "pages"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.f1_at_least <= 1:
            raise ConfigError(f"f1_at_least must lie in (0, 1], got {self.f1_at_least}")
        if self.judge and self.score != "em":
            raise ConfigError("--judge decides alone: leave --score out")
        if self.questions is None and self.tools != "toyweb":
            raise ConfigError(f"--tools {self.tools} needs a file of --questions")
        if self.questions is not None and self.tools == "toyweb":
            raise ConfigError("the toy web answers its own questions only: choose other --tools for a file of --questions")
        if self.tools != "toyweb" and (self.hops, self.slack) != (None, None):
            raise ConfigError("--hops and --slack are of the toy web")
        if self.xray is None and (self.answer is not None or self.group is not None):
            raise ConfigError("--answer and --group belong to --xray FILE")
        self.infer()

    def infer(self) -> InferConfig:
        """What infer.py would be told; it also checks the values."""
        own = {field.name for field in fields(self)} - {"json", "out"}
        return InferConfig(**{field.name: getattr(self, field.name) for field in fields(InferConfig) if field.name in own})

    def resolved(self) -> "EvalConfig":
        """Every choice made that depends on others: the folder of the newest model, sampling, sizes."""
        here = self.api_base is None
        named = replace(self, model=str(model_folder(self.infer()) or "tiny")) if here else self
        device = device_of(self.device) if here else self.device
        found = asdict(named.infer().resolved())
        config = replace(named, limit=self.limit or (128 if self.tools == "toyweb" else None), device=device,
                         concurrency=self.concurrency or (64 if named.infer().tiny else 8),
                         **{name: found[name] for name in ("max_new_tokens", "max_context", "temperature", "top_p", "top_k",
                                                           "presence_penalty", "retries")})
        if config.runs > 1 and config.temperature == 0:
            raise ConfigError(f"{config.runs} runs with temperature 0 would all be the same: give a --temperature")
        return config


# What may be another when an evaluation goes on: how much of it, how fast, at which address, and what is shown.
MAY_CHANGE = ("limit", "runs", "concurrency", "pages", "api_base", "published", "json", "out", "redo_failed", "regrade",
              "compare", "xray", "group", "answer")
GRADING = ("score", "f1_at_least", "judge")              # another with --regrade only


def identity(config: EvalConfig, questions: str, system: str, judge: str | None) -> dict:
    """What all runs of an evaluation have in common, as JSON. `config` is resolved; `questions` is the fingerprint of all that
    could be asked, `judge` the judge's model. Files count by what they hold, not by their names."""
    by_content = ("questions", "system_prompt", "model")
    values = {key: value for key, value in asdict(config).items() if key not in (*MAY_CHANGE, *by_content)}
    if config.judge or config.score == "em":
        del values["f1_at_least"]
    return values | {"judge": judge, "questions": questions, "system_prompt": digest(system), "model": fingerprint(config.model)}


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
    parts = [part for part in Path(config.api_model or config.model).parts if part not in ("/", "runs", "checkpoints", "model")]
    name = "-".join("".join(c if c.isalnum() or c in "-_." else "-" for c in part) for part in parts[-2:]) or "model"
    return Path("runs/eval", f"{name}-{digest({k: v for k, v in identity.items() if k not in GRADING})[:8]}")
