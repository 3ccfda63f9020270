"""A schema registry for tests: Apicurio, fetched once, with Confluent's REST interface."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import await_true

from statehold.dev.errors import DevError, JarsUnavailable
from statehold.dev.jars import MavenDownloads, cache_root, one_at_a_time
from statehold.dev.java import find_java
from statehold.dev.ports import free_ports

VERSION = "3.0.9"
SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"


class RegistryServer:
    """Keeps schemas in memory and loses them when it stops. `start` may be called again."""

    def __init__(self, home: Path, directory: Path) -> None:
        self._home, self._log = home, directory / "registry.log"
        self._port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    def start(self) -> None:
        environment = {**os.environ, "QUARKUS_HTTP_PORT": str(self._port), "QUARKUS_HTTP_HOST": "127.0.0.1"}
        jar = self._home / f"apicurio-registry-app-{VERSION}-runner.jar"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [find_java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-jar", str(jar)],
                env=environment,
                stdout=log,
                stderr=log,
            )
        await_true(self._answers, "the registry answers", 180)
        self.request("PUT", "config", {"compatibility": "BACKWARD"})

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the registry's answer to a plain HTTP request."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/{path}", data, headers, method=method)  # noqa: S310  this class started it
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.load(answer)

    def register(self, subject: str, schema: str, kind: str = "AVRO") -> int:
        body = {"schema": schema, "schemaType": kind}
        return int(self.request("POST", f"subjects/{subject}/versions", body)["id"])

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        try:
            return isinstance(self.request("GET", "subjects"), list)
        except OSError:
            return False


@contextmanager
def registry_server(directory: Path) -> Iterator[RegistryServer]:
    """Run a registry; without Java or a network skip the test, but fail in CI."""
    try:
        server = RegistryServer(_home(), directory)
    except DevError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no schema registry here: {error}")
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _home() -> Path:
    home = cache_root() / f"apicurio-{VERSION}"
    with one_at_a_time(cache_root()):
        if not home.is_dir():
            with tempfile.TemporaryDirectory(prefix=".apicurio-", dir=cache_root()) as work:
                archive = _fetch(Path(work) / "repository")
                with archive.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != SHA256:
                        raise JarsUnavailable("the schema registry's archive has another checksum than recorded")
                extract_files(archive, Path(work) / "ready")
                (Path(work) / "ready").rename(home)
    return home


def _fetch(repository: Path) -> Path:
    """Download the archive of the release without verifying it. Raises `JarsUnavailable`."""
    from_maven = MavenDownloads(repository)
    with from_maven.failing_as(f"apicurio-registry-app {VERSION}"):
        component = from_maven.context.project("io.apicurio", "apicurio-registry-app").at_version(VERSION)
        archive: Path = component.artifact("all", "tar.gz").resolve()
    return archive


def extract_files(archive: Path, target: Path) -> None:
    """Extract the regular files of an archive; raise ValueError for a path outside `target`.

    TarFile.extractall has no `filter` before Python 3.11.4, and Debian 12 has 3.11.2.
    """
    with tarfile.open(archive) as tar:
        for member in tar:
            path = (target / member.name).resolve()
            if not path.is_relative_to(target.resolve()):
                raise ValueError(f"{archive.name} has a path outside its folder: {member.name}")
            if member.isfile() and (source := tar.extractfile(member)) is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    shutil.copyfileobj(source, file)
