"""Small HTTP servers on 127.0.0.1 for the tests: a function writes what it wants to the socket."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from unittest import mock

from minvenus.agent.observation import result_text
from minvenus.agent.prompt import ResultFormat
from minvenus.tools import endpoint
from minvenus.tools.base import FailureGuard, ToolResult, ToolRunner


class Server(ThreadingHTTPServer):
    """`seen` has (method, path, headers, body) of every request, in order."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64  # the default of 5 makes the sixth client wait a second

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.seen = answer, []
        self.stop = threading.Event()  # for handlers that go on until the test ends

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """A client that hung up is what many tests are about."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.close_connection = True
        self.server.seen.append((self.command, self.path, dict(self.headers), self.body))
        self.server.answer(self)

    do_POST = do_GET

    def log_message(self, *arguments):
        pass

    def reply(
        self, data: bytes | str | dict, kind: str | None = "text/html", status: int = 200, **headers
    ):
        """Headers are given with underscores: Retry_After="1"."""
        if isinstance(data, dict):
            data, kind = json.dumps(data), "application/json"
        data = data.encode() if isinstance(data, str) else data
        self.send_response(status)
        for name, value in ({"Content-Type": kind, "Content-Length": len(data)} | headers).items():
            if value is not None:
                self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serve(answer):
    """A running server; `answer(handler)` writes the reply. Waits between attempts are short."""
    server = Server(answer)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        with mock.patch.object(endpoint, "BACKOFF", 0.01):
            yield server
    finally:
        server.stop.set()
        server.shutdown()
        server.server_close()
        thread.join()


def dripping(start: bytes):
    """An answer that never ends: byte by byte, until the test does."""

    def answer(handler):
        handler.wfile.write(start)
        while not handler.server.stop.wait(0.05):
            handler.wfile.write(b"x")

    return answer


def chat(content) -> dict:
    """A reply of an OpenAI-compatible model."""
    return {"choices": [{"message": {"role": "assistant", "content": content}}]}


class Observed(NamedTuple):
    text: str
    error: str | None = None


def observed(result: ToolResult, **shown) -> Observed:
    """What a model sees of a result, whole; `shown` are fields of a ResultFormat."""
    return Observed(result_text(result, ResultFormat(**shown)), result.error)


def run_in_thread(tools, name: str, seconds: float = 450.0, **arguments) -> ToolResult:
    runner = ToolRunner(1, seconds, FailureGuard())
    while not (result := runner.poll(None, tools, name, arguments)):
        time.sleep(0.002)
    return result


def call(tools, name: str, seconds: float = 450.0, **arguments) -> Observed:
    """What a model sees of a call that runs in threads."""
    return observed(run_in_thread(tools, name, seconds, **arguments))
