"""A headless Chromium, driven over a pipe by its DevTools protocol: JSON messages that end with a zero byte."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

BINARY = shutil.which("chromium")
# The browser reads its commands from file descriptor 3 and answers on 4.
_ON_A_PIPE = 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1'
_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # there is none for root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # offline, whatever the machine has
    "--window-size=1400,1000",
)


class Browser:
    """One page."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._loaded = False
        self.complaints: list[str] = []
        """Errors, warnings and refusals of the content policy, from the page's console and its network log."""
        self.requests: list[str] = []
        """Addresses that the page asked for."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def emulate(self, *, width: int, dark: bool = False) -> None:
        """A screen of that many CSS pixels, on a system with a light or a dark scheme."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path) -> None:
        """Load a file and wait until it is there."""
        self._loaded = False
        assert "errorText" not in self._call("Page.navigate", url=path.as_uri())
        while not self._loaded:
            self._read()

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """A real click of the mouse in the middle of the element."""
        self.evaluate(
            f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center', inline: 'center'}})"
        )
        box = self.evaluate(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
        place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def screenshot(self, selector: str | None = None) -> bytes:
        """The whole page as PNG, or an element of it."""
        clip = {}
        if selector:
            self.evaluate("scrollTo(0, 0)")
            box = self.evaluate(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
            clip = {"clip": {**{name: box[name] for name in ("x", "y", "width", "height")}, "scale": 1}}
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True, **clip)
        return base64.b64decode(answer["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        message = {"id": next(self._numbers), "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        assert self._process.stdin
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        self._process.stdin.flush()
        while (answer := self._read()).get("id") != message["id"]:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        """The next answer or event."""
        assert self._process.stdout
        data = bytearray()
        while not data.endswith(b"\0"):
            byte = self._process.stdout.read(1)
            assert byte, "the browser is gone"
            data += byte
        message: dict[str, Any] = json.loads(data[:-1])
        match message.get("method"):
            case "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded":
                self.complaints.append(json.dumps(message["params"]))
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
        return message


@contextlib.contextmanager
def browser(profile: Path, *, options: Sequence[str] = (), timeout_s: float = 120) -> Iterator[Browser]:
    """A browser of its own, with more command-line ``options``; it is killed after ``timeout_s`` at the latest."""
    assert BINARY
    process = subprocess.Popen(
        ["sh", "-c", _ON_A_PIPE, "sh", BINARY, *_OPTIONS, *options, f"--user-data-dir={profile}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    # A read from a browser that hangs ends with its process.
    watchdog = threading.Timer(timeout_s, process.kill)
    watchdog.start()
    try:
        yield Browser(process)
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
