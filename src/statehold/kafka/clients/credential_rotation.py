"""Watches the files of passwords and certificates, tries changed ones, and then replaces every client.

librdkafka reads certificates when a client is made, and keeps its login. Long-lived clients are therefore replaced in
order: partitions commit and are handed over, and the service joins the group again. A login that does not work replaces
nothing.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from statehold.config import client
from statehold.config.common.secret import FileSecret
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.kafka.common.client_log import quiet_logger
from statehold.telemetry.log_events import Log

#: seconds between two checks of the files
_CHECK_EVERY: Final = 2.0
#: seconds until a rejected login is tried again although no file has changed
_RETRY_AFTER: Final = 60.0
#: seconds for the trial login
_TRIAL: Final = 10.0


def files_of(settings: Settings) -> list[Path]:
    """Return the files of the clients' login; none if it comes from the environment."""
    security = settings.kafka.security
    extra = settings.kafka.extra.for_clients("every")
    named = [
        security.ssl_ca_location,
        security.ssl_certificate_location,
        security.ssl_key_location,
        *(str(extra.get(key, "")) for key in ("ssl.keystore.location", "ssl.crl.location")),
    ]
    secrets = (security.sasl_password, security.oauth_client_secret, security.ssl_key_password)
    return [Path(name) for name in named if name] + [each.file for each in secrets if isinstance(each, FileSecret)]


def fingerprint(files: Sequence[Path]) -> bytes:
    """Return a digest of the files' contents. An unreadable file counts as empty."""
    digest = hashlib.sha256()
    for piece in _pieces(files):
        digest.update(hashlib.sha256(piece).digest())
    return digest.digest()


class CredentialRotation:
    """Watches on a thread of its own if there are files to watch. The thread calls each of `renew` in order."""

    def __init__(self, settings: Settings, log: Log, renew: Sequence[Callable[[], object]]) -> None:
        self._settings, self._log, self._renew = settings, log, renew
        self._files = files_of(settings) if settings.kafka.security.protocol != "plaintext" else []
        #: fingerprint of the login that the clients use
        self._used = fingerprint(self._files)
        self._ending = threading.Event()

    def start(self) -> None:
        if self._files:
            threading.Thread(target=self._run, name="renewal", daemon=True).start()

    def close(self) -> None:
        self._ending.set()

    def _run(self) -> None:
        seen, wait = self._used, 0.0
        while not self._ending.wait(_CHECK_EVERY):
            now, wait = fingerprint(self._files), wait - _CHECK_EVERY
            # Wait one round after a change, because key and certificate are two files.
            settled, seen = now == seen, now
            if not settled:
                wait = 0.0
            elif now != self._used and wait <= 0:
                wait = 0.0 if self._renewed(now) else _RETRY_AFTER

    def _renewed(self, now: bytes) -> bool:
        refused, files = self._trial(), [str(file) for file in self._files]
        try:
            for renew in () if refused else self._renew:
                renew()
        except (KafkaTrouble, KafkaException) as error:  # the next trial renews all of them again
            refused = str(error)
        if refused:
            self._log.warning("login_not_renewed", cause=refused, files=files)
            return False
        self._used = now
        self._log.info("login_renewed", files=files)
        return True

    def _trial(self) -> str:
        """Return why the brokers reject the login in the files; '' if they accept it."""
        config: dict[str, Any] = dict(client.admin(self._settings))
        heard: list[str] = []
        config |= {"logger": quiet_logger("trial"), "error_cb": lambda error: heard.append(error.str())}
        try:
            AdminClient(config).list_topics(timeout=_TRIAL)
        except KafkaException as error:
            return "; ".join(dict.fromkeys([*heard, str(error)]))
        return ""


def _pieces(files: Sequence[Path]) -> Iterator[bytes]:
    for file in files:
        try:
            yield repr(sorted(map(_stamp, file.iterdir()))).encode() if file.is_dir() else file.read_bytes()
        except OSError:
            yield b""


def _stamp(file: Path) -> tuple[str, int, int]:
    """Return name, time and size, because a directory may hold a hundred certificates."""
    found = file.stat()
    return file.name, found.st_mtime_ns, found.st_size
