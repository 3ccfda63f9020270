"""A real Prometheus that scrapes the processes of a test, and promtool."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from statehold.dev.ports import free_ports

SECONDS: Final = 120.0
_SCRAPE: Final = "2s"


def missing() -> str:
    """Return why Prometheus cannot run here, or ''."""
    absent = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
    return f"no {' and no '.join(absent)} here: sudo apt-get install prometheus" if absent else ""


def promtool(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *arguments], cwd=cwd, text=True, check=False, timeout=600, stdout=-1, stderr=subprocess.STDOUT
    )


class Prometheus:
    """`with Prometheus(folder, rules) as server:`; its targets and its data are files in `folder`."""

    def __init__(self, folder: Path, rules: str) -> None:
        self._folder, self._url = folder, ""
        self._process: subprocess.Popen[bytes] | None = None
        self._targets: dict[str, str] = {}
        (folder / "targets").mkdir(parents=True)
        (folder / "statehold.rules.yml").write_text(rules)
        shipped = (Path(__file__).parents[2] / "deploy" / "prometheus" / "prometheus.yml").read_text()
        (folder / "prometheus.yml").write_text(shipped.replace("15s", _SCRAPE))

    def scrape(self, **targets: str) -> None:
        """Scrape `url` under a name of the test's own from now on; stop that for an empty URL."""
        self._targets = {name: url for name, url in {**self._targets, **targets}.items() if url}
        groups = [{"targets": [urlsplit(url).netloc], "labels": {"name": n}} for n, url in self._targets.items()]
        fresh = self._folder / "targets" / "new"
        fresh.write_text(json.dumps(groups))
        fresh.rename(self._folder / "targets" / "all.json")

    def query(self, expression: str) -> list[Any]:
        """Return the series of an expression now. Raises AssertionError for an invalid expression."""
        asked = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/query?{asked}", timeout=30) as answer:  # noqa: S310  this class started the server
                found: list[Any] = json.load(answer)["data"]["result"]
                return found
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error

    def await_series(self, expressions: Sequence[str], seconds: float = SECONDS) -> None:
        """Wait until each of them has a sample."""
        left = list(expressions)

        def none_left() -> bool:
            left[:] = [each for each in left if not self.query(each)]
            return not left

        self._await(none_left, lambda: f"no series for: {left}", seconds)

    def await_alert(self, alert: str, /, seconds: float = SECONDS, **labels: str) -> None:
        """Wait until it fires."""
        chosen = ",".join(f'{key}="{value}"' for key, value in {"alertname": alert, **labels}.items())
        wanted = f'ALERTS{{alertstate="firing",{chosen}}}'
        self._await(lambda: bool(self.query(wanted)), lambda: f"{wanted} does not fire", seconds)

    def await_calm(self, alert: str, /, seconds: float = SECONDS, **labels: str) -> None:
        """Wait until it does not fire."""
        chosen = ",".join(f'{key}="{value}"' for key, value in {"alertname": alert, **labels}.items())
        wanted = f'ALERTS{{alertstate="firing",{chosen}}}'
        self._await(lambda: not self.query(wanted), lambda: f"{wanted} is still firing", seconds)

    def _await(self, condition: Callable[[], bool], what: Callable[[], str], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what()}; it says: {self.log()[-1500:]}"
            time.sleep(0.2)

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def __enter__(self) -> Self:
        for _ in range(5):  # a port that was free may be taken by the time it is used
            self._start(free_ports(1)[0])
            if self._answers():
                return self
            self.__exit__(None, None, None)
        raise AssertionError(f"prometheus does not start: {self.log()[-1500:]}")

    def _start(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        command = [
            "prometheus",
            f"--config.file={self._folder}/prometheus.yml",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        command += [f"--storage.tsdb.path={self._folder}/data", "--log.level=warn"]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _answers(self) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):  # noqa: S310  this class started the server
                    return True
            except OSError:
                time.sleep(0.1)
        return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(30)
