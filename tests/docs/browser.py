"""A browser without a window, told what to do over its own pipe, and a server of files for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
KINDS = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css"}
KINDS |= {".wasm": "application/wasm", ".json": "application/json"}
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage")


def installed() -> str | None:
    """The program, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page, and what can be asked of it."""

    def __init__(self, write: int, read: IO[bytes]) -> None:
        self._write, self._read, self._rest, self._last = write, read, b"", 0
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def go(self, address: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show an address on a screen of this size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])
        self._ask("Page.navigate", url=address)
        here = address.partition("?")[0]
        self.wait(f"location.href.startsWith({here!r}) && document.readyState === 'complete' && !!document.body")

    def value(self, script: str) -> Any:
        """What an expression in the page is."""
        result = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(result["exceptionDetails"])
        return result["result"].get("value")

    def wait(self, script: str, seconds: float = 60.0) -> None:
        """Until an expression is true."""
        end = time.monotonic() + seconds
        while not self.value(script):
            assert time.monotonic() < end, f"never came true: {script}\n{self.value('document.body.innerText')}"
            time.sleep(0.1)

    def _ask(self, method: str, **words: Any) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": words}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._next())
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                return answer["result"]  # type: ignore[no-any-return]

    def _next(self) -> bytes:
        while b"\0" not in self._rest:
            more = self._read.read(1 << 16)
            assert more, "the browser has ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return message


@contextmanager
def page() -> Iterator[Page]:
    """A browser with one page, ended afterwards."""
    program = installed()
    assert program is not None
    theirs, ours = os.pipe(), os.pipe()  # what it reads, what it writes

    def place() -> None:  # the browser wants them as 3 and 4
        read, write = os.dup(theirs[0]), os.dup(ours[1])
        os.dup2(read, 3)
        os.dup2(write, 4)

    with tempfile.TemporaryDirectory() as profile:
        command = [program, *_OPTIONS, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, preexec_fn=place, close_fds=False, **quiet)
        os.close(theirs[0])
        os.close(ours[1])
        with os.fdopen(ours[0], "rb", buffering=0) as said:
            try:
                yield Page(theirs[1], said)
            finally:
                process.terminate()
                process.wait(30)
                os.close(theirs[1])
            time.sleep(0.2)  # its helpers still write to the profile


@contextmanager
def served(
    files: Callable[[str], bytes | None], answers: Mapping[str, Callable[[bytes], bytes]] | None = None
) -> Iterator[str]:
    """The address of a server of files by their paths, and of answers to what is posted."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0].lstrip("/")
            self._send(files(path), KINDS.get(Path(path).suffix, "application/octet-stream"))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = (answers or {}).get(self.path)
            self._send(None if answer is None else answer(body), "application/json")

        def _send(self, content: bytes | None, kind: str) -> None:
            self.send_response(200 if content is not None else 404)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
