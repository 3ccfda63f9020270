"""A real headless Chromium, controlled through its own driver: the W3C WebDriver protocol, JSON over HTTP."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
#: of a command, also of a script, for which the driver otherwise waits 30 s: a busy machine is slow
_SECONDS = 240.0
_OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
#: what keyboards send, in WebDriver's private characters
TAB, ENTER, BACKSPACE = "\ue004", "\ue007", "\ue003"


def missing() -> str:
    """Return why no browser can run here, or ''."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"no {' and no '.join(absent)} here: sudo apt-get install chromium chromium-driver" if absent else ""


class BrowserError(AssertionError):
    """The driver rejected a command."""


class Browser:
    """`with Browser() as page: page.open(url)`; ends its driver and its profile."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        self._size = width, height
        self._profile = tempfile.TemporaryDirectory(prefix="sh-browser-")
        self._driver: subprocess.Popen[str] | None = None
        self._base = ""

    def __enter__(self) -> Self:
        self._driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            if found := re.search(r"successfully on port (\d+)", line):
                self._base = f"http://127.0.0.1:{found[1]}/session"
                break
        try:
            self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def _begin(self) -> None:
        size = "--window-size={},{}".format(*self._size)
        options = {"args": [*_OPTIONS, size, f"--user-data-dir={self._profile.name}"]}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
            "timeouts": {"script": int(_SECONDS * 1000)},
        }
        session = self._call("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        self._base += f"/{session['sessionId']}"
        self.resize(*self._size)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._end()

    def _end(self) -> None:
        assert self._driver is not None
        assert self._driver.stdout is not None
        self._driver.terminate()
        self._driver.wait(_SECONDS)
        self._driver.stdout.close()
        self._profile.cleanup()

    def open(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page, which may be narrower than a window."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def scheme(self, name: str) -> None:
        """Set the colour scheme of the user's system: light or dark."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of a function and return its result."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        """Return the visible text; '' for nothing and for a hidden element, whose innerText is its whole text."""
        look = (
            "const found = document.querySelector(arguments[0]); return found?.checkVisibility() ? found.innerText : ''"
        )
        return str(self.run(look, selector))

    def click(self, selector: str) -> None:
        self._call("POST", f"/element/{self._find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self._call("POST", f"/element/{self._find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Send keys to the element with the focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def complaints(self) -> list[str]:
        """Return errors and warnings of the page since the last call: scripts, blocked requests, rejected resources."""
        reported = self._call("POST", "/se/log", {"type": "browser"})
        return [each["message"] for each in reported if each["level"] in ("SEVERE", "WARNING")]

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _find(self, selector: str) -> str:
        return str(self._call("POST", "/element", {"using": "css selector", "value": selector})[_ELEMENT])

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._base}{path}", data, method=method)  # noqa: S310  this class started the driver
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise BrowserError(json.loads(error.read())["value"]["message"].split("\n")[0]) from None
