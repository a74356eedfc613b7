"""A headless Chromium, driven over its debugging pipe with the DevTools protocol: messages end with a zero byte."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page. `errors` collects the errors that the page wrote to the console, and its uncaught exceptions."""

    def __init__(self, width: int = 1400, height: int = 900, dark: bool = False) -> None:
        binary = find_chromium()
        if binary is None:
            raise FileNotFoundError("no Chromium on PATH: apt-get install chromium")
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.errors: list[str] = []
        self._count = 0
        self._buffer = b""
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        flags = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe",
            f"--user-data-dir={self.profile.name}", f"--window-size={width},{height}",
            *(["--blink-settings=preferredColorScheme=0"] if dark else []),
        ]  # fmt: skip
        # Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}', binary, *flags, "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        targets = self._call("Target.getTargets", {}, None)["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attached = self._call("Target.attachToTarget", {"targetId": page, "flatten": True}, None)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride",
                  width=width, height=height, deviceScaleFactor=1, mobile=False)  # fmt: skip

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self.profile.cleanup()

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._from, 1 << 20)
            if not piece:
                raise ConnectionError("Chromium has ended")
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        event = json.loads(message)
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params["args"]))
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:")):
            self.errors.append("the page requests " + params["request"]["url"])
        return event

    def _call(self, method: str, params: dict[str, Any], session: str | None) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            event = self._receive()
            if event.get("id") == self._count:
                if "error" in event:
                    raise RuntimeError(f"{method}: {event['error']}")
                return event["result"]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._call(method, params, self._session)

    def open(self, path: Path, fragment: str = "") -> float:
        """Opens a page. Returns the seconds until it is loaded and drawn."""
        begin = time.monotonic()
        self.call("Page.navigate", url=path.resolve().as_uri() + ("#" + fragment if fragment else ""))
        while self.evaluate("document.readyState") != "complete" or not self.evaluate("'remoteViz' in window"):
            if time.monotonic() - begin > 60:
                raise TimeoutError(f"{path} does not load: {self.errors}")
            time.sleep(0.01)
        self.settle()
        return time.monotonic() - begin

    def settle(self) -> None:
        """Waits until two frames are drawn."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def wait_until(self, condition: str) -> None:
        """Waits until the expression is true, and what it led to is drawn."""
        begin = time.monotonic()
        while not self.evaluate(condition):
            if time.monotonic() - begin > 10:
                raise TimeoutError(f"{condition} does not become true: {self.errors}")
            time.sleep(0.01)
        self.settle()

    def evaluate(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def move_to(self, x: float, y: float) -> None:
        self.mouse("mouseMoved", x, y)
        self.settle()

    def click(self, x: float, y: float) -> None:
        self.move_to(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1, buttons=1)
        self.settle()

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)
        self.settle()

    def type_key(self, key: str) -> None:
        """Types a character as a key, so that the page's handlers of keys see it."""
        for kind, typed in (("keyDown", key), ("keyUp", "")):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=typed)
        self.settle()

    def press(self, key: str) -> None:
        code, text = {"Enter": (13, "\r"), "Escape": (27, "")}[key]
        for kind, typed in (("keyDown", text), ("keyUp", "")):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=typed)
        self.settle()
