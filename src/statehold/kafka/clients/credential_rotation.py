"""Passwords and certificates that change while the service runs: the new ones are tried, then every client gets them.

librdkafka reads certificates when a client is made, and its logins stay what they were. So long-lived clients are
replaced, in good order: partitions commit and are handed over, and the group is joined again. A login that does not
work replaces nothing.
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
from statehold.kafka.common.transaction_taint import quiet_logger
from statehold.telemetry.log_events import Log

#: seconds between two looks at the files
_LOOK_EVERY: Final = 2.0
#: seconds until a new login that was refused is tried again without another change
_TRY_AGAIN: Final = 60.0
#: seconds that the trial may take
_TRIAL: Final = 10.0


def files_of(settings: Settings) -> list[Path]:
    """What the clients' login is read from; nothing where it comes from the environment."""
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
    """Another one when any of them has another content; what cannot be read counts as empty."""
    told = hashlib.sha256()
    for piece in _pieces(files):
        told.update(hashlib.sha256(piece).digest())
    return told.digest()


class CredentialRotation:
    """A thread of its own, only where there is something to watch. `renew` are called on it, one after the other."""

    def __init__(self, settings: Settings, log: Log, renew: Sequence[Callable[[], object]]) -> None:
        self._settings, self._log, self._renew = settings, log, renew
        self._files = files_of(settings) if settings.kafka.security.protocol != "plaintext" else []
        #: what the clients have, and what they shall have
        self._used = fingerprint(self._files)
        self._ending = threading.Event()

    def start(self) -> None:
        if self._files:
            threading.Thread(target=self._run, name="renewal", daemon=True).start()

    def close(self) -> None:
        self._ending.set()

    def _run(self) -> None:
        seen, wait = self._used, 0.0
        while not self._ending.wait(_LOOK_EVERY):
            now, wait = fingerprint(self._files), wait - _LOOK_EVERY
            # Key and certificate are two files: what has just changed is not finished perhaps.
            settled, seen = now == seen, now
            if not settled:
                wait = 0.0
            elif now != self._used and wait <= 0:
                wait = 0.0 if self._renewed(now) else _TRY_AGAIN

    def _renewed(self, now: bytes) -> bool:
        refused, files = self._trial(), [str(file) for file in self._files]
        try:
            for renew in () if refused else self._renew:
                renew()
        except (KafkaTrouble, KafkaException) as error:  # what was renewed is renewed again then
            refused = str(error)
        if refused:
            self._log.warning("login_not_renewed", cause=refused, files=files)
            return False
        self._used = now
        self._log.info("login_renewed", files=files)
        return True

    def _trial(self) -> str:
        """Why the brokers do not take what the files hold now; '' if they do."""
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
    """Of a directory's hundred certificates this has to do."""
    found = file.stat()
    return file.name, found.st_mtime_ns, found.st_size
