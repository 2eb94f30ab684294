"""A real browser for the tests of the pages: Chromium without a window, driven through its DevTools pipe.

Everything that a page does wrong is collected while it is open: errors on the console, exceptions, dialogs,
and every request for anything but the file itself.
"""

import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--disable-extensions",
         "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe")
SECONDS = 120                     # for one answer of the browser: other work may have both cores
MIDDLE = """(selector) => {
  const e = document.querySelector(selector);
  e.scrollIntoView({block: "center"});
  const box = e.getBoundingClientRect(), x = box.left + box.width / 2, y = box.top + box.height / 2;
  const top = document.elementFromPoint(x, y);
  return [x, y, e.contains(top) || top.contains(e)];
}"""


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One process and one tab. Use as a context manager."""

    def __enter__(self) -> "Browser":
        self.profile = tempfile.mkdtemp(prefix="minvenus-browser-")
        (to_read, self.to_browser), (self.from_browser, to_write) = os.pipe(), os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (to_read, to_write)]     # the browser wants 3 and 4
        os.close(to_read)
        os.close(to_write)

        def place():
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        command = [find(), *FLAGS, f"--user-data-dir={self.profile}", "about:blank"]
        self.process = subprocess.Popen(command, preexec_fn=place, pass_fds=(3, 4), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        for fd in ends:
            os.close(fd)
        self.waiting, self.count, self.session, self.events = b"", 0, None, []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(self, *_) -> None:
        self.session = None
        try:
            self.send("Browser.close")
            self.process.wait(10)
        except (OSError, TimeoutError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.to_browser)
        os.close(self.from_browser)
        shutil.rmtree(self.profile, ignore_errors=True)

    # -------------------------------------------------------------------------------------------- the protocol

    def send(self, method: str, **params) -> dict:
        self.count += 1
        self.write(self.count, method, params)
        while True:
            answer = self.receive()
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.happened(answer)

    def write(self, number: int, method: str, params: dict) -> None:
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")

    def receive(self) -> dict:
        until = time.monotonic() + SECONDS
        while b"\0" not in self.waiting:
            if not select.select([self.from_browser], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"no answer from the browser within {SECONDS} s")
            part = os.read(self.from_browser, 1 << 20)
            if not part:
                raise OSError("the browser has ended")
            self.waiting += part
        line, _, self.waiting = self.waiting.partition(b"\0")
        return json.loads(line)

    def happened(self, message: dict) -> None:
        self.events.append(message)
        if message.get("method") == "Page.javascriptDialogOpening":        # an alert would stop all that follows
            self.write(10**9, "Page.handleJavaScriptDialog", {"accept": False})

    # ---------------------------------------------------------------------------------------- what a user does

    def open(self, path, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.events, self.address = [], Path(path).resolve().as_uri()
        self.send("Page.navigate", url=self.address)
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.happened(self.receive())

    def js(self, expression: str):
        """The value of an expression in the page, after what it set off has run."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """A real click into the middle of the element, which must be there and on top."""
        x, y, hit = self.js(f"({MIDDLE})({json.dumps(selector)})")
        assert hit, f"{selector} is covered by something else"
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.js("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")

    def key(self, key: str, code: int = 0) -> None:
        text = {"Enter": "\r", " ": " "}.get(key, key if len(key) == 1 else None)
        pressed = {"key": key, "windowsVirtualKeyCode": code or ord(key[0].upper())}
        self.send("Input.dispatchKeyEvent", type="keyDown", **pressed, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def text(self, selector: str) -> str:
        return self.js(f"document.querySelector({json.dumps(selector)}).textContent")

    # ----------------------------------------------------------------------------------------- what went wrong

    def complaints(self) -> list[str]:
        """Errors, warnings and exceptions of the console, and dialogs that opened."""
        self.js("new Promise(done => setTimeout(done, 50))")
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str([a.get("value") for a in params["args"]]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            elif method == "Page.javascriptDialogOpening":
                found.append(f"dialog: {params['message']}")
        return found

    def requests(self) -> list[str]:
        """Everything that the page asked for beyond itself."""
        asked = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in asked if url != self.address and not url.startswith("data:")]
