"""Collects a support bundle without secrets and records."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

from statehold.common.version import __version__
from statehold.config.common.secret import REDACTED
from statehold.config.settings import Settings
from statehold.ops.remote import control_sockets
from statehold.ops.remote.control_sockets import LocalProcess

#: bytes of the newest part of each log
_LOG_BYTES: Final = 5_000_000
_PATIENCE: Final = 10.0
#: text that looks like a secret in another program's line
_LOOKS_SECRET: Final = re.compile(
    r"""(?i)((?:password|passwd|secret|token|credential|api[_-]?key)["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s,;}]+)"""
)


class Bundle:
    """Collects files, then writes them as one archive, readable by its owner alone."""

    def __init__(self, settings: Settings) -> None:
        security = settings.kafka.security
        hidden = (security.sasl_password.reveal(), security.ssl_key_password.reveal())
        self._secrets = [text for text in (*hidden, *_extra_secrets(settings)) if text]
        self._files: dict[str, bytes] = {}

    @property
    def names(self) -> list[str]:
        return list(self._files)

    def add(self, name: str, content: str) -> None:
        """Add a file after redacting everything that is, or looks like, a secret."""
        for secret in self._secrets:
            content = content.replace(secret, REDACTED)
        self._files[name] = _LOOKS_SECRET.sub(rf"\1{REDACTED}", content).encode()

    def add_json(self, name: str, value: Any) -> None:
        self.add(name, json.dumps(value, indent=1, default=str, ensure_ascii=False) + "\n")

    def add_log(self, path: Path) -> None:
        """Add the newest part of a log file.

        :raises OSError: it cannot be read.
        """
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES))
            self.add(f"logs/{path.name}", file.read().decode(errors="replace"))

    def write(self, path: Path) -> None:
        """:raises OSError: it cannot be written, or is there already."""
        root = path.name.removesuffix(".tar.gz")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, content in self._files.items():
                entry = tarfile.TarInfo(f"{root}/{name}")
                entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
                archive.addfile(entry, io.BytesIO(content))


def machine() -> dict[str, Any]:
    """Describe this machine and the installed packages."""
    return {
        "statehold": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "file_limit": resource.getrlimit(resource.RLIMIT_NOFILE),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "packages": sorted(f"{each.metadata['Name']} {each.version}" for each in distributions()),
        "environment": sorted(name for name in os.environ if name.startswith("STATEHOLD_")),
    }


def stacks_of(found: Iterable[LocalProcess]) -> dict[str, Any]:
    """Return the stacks of each process, or the reason for its silence."""
    stacks: dict[str, Any] = {}
    for each in found:
        try:
            stacks[each.path.name] = control_sockets.ask(each.path, "/stacks", _PATIENCE)
        except (OSError, ValueError) as error:
            stacks[each.path.name] = f"{error}; send SIGUSR1 to the process: its log then shows every stack"
    return stacks


def journal(unit: str) -> str:
    """Return the newest lines of a unit's journal, or the reason why they are missing."""
    tool = shutil.which("journalctl")
    if tool is None:
        return "journalctl is not installed here\n"
    command = [tool, "--no-pager", "--output=cat", "--lines=20000", f"--unit={unit}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout or done.stderr or "no lines\n"


def _extra_secrets(settings: Settings) -> Iterable[str]:
    from statehold.config.librdkafka.client_keys import ALLOWED

    extra: Mapping[str, str] = settings.kafka.extra
    return [value for key, value in extra.items() if ALLOWED[key].secret]
