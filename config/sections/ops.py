"""Settings of a service's HTTP server: health, metrics, status, console, state queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from statehold.config.common.option import Section, choice, seconds, secret, text
from statehold.config.common.secret import Secret

#: a shorter token could be guessed
TOKEN_LENGTH: Final = 16
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsSettings(Section, name="ops"):
    """The HTTP server of `statehold run` (or of `statehold.ops.http.server.OpsServer`): see docs/reference/ops.md."""

    listen: str = text(
        "auto",
        "Address of the server. auto: 127.0.0.1 and the first free port from 8470 on, so that several instances "
        "fit on one machine. off: no server. host:port: exactly this address; port 0 is any free port.",
        pattern=r"auto|off|(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}",
        form="auto, off or host:port",
    )
    token: Secret = secret(  # noqa: RUF009
        "Requests for more than health and metrics must send it: `Authorization: Bearer ...`. At least 16 "
        "characters; give it in the secrets directory. Required for state queries, and for everything but "
        "health and metrics on an address that other machines reach."
    )
    state: Literal["off", "on"] = choice("off", "Whether committed state can be queried; needs a token.")
    replica: float | Literal["off"] = seconds(
        "off",
        "Answer state queries from the standby replica that another instance holds (group.standbys), if it is "
        "at most this old. Such an answer states its age and its position.",
        low=0.3,
        high=3600.0,
    )
    advertised: str = text(
        "",
        "URL under which other machines reach this server (or the mounted ASGI application), such as "
        "https://web1:8443/ops; instances return it to each other's callers. Empty: made from the listening "
        "address.",
        pattern=r"|https?://[^\s?#]+",
        form="an http or https URL",
    )

    tracing: Literal["off", "on"] = choice(
        "off",
        "on: outputs carry the W3C trace context of their input record, and batches, commits and restores are "
        "spans of the process's OpenTelemetry provider. Needs the extra statehold[otel]; off costs nothing.",
    )

    @property
    def local_only(self) -> bool:
        """Whether only this machine reaches the server."""
        return self.listen in ("auto", "off") or self.listen.rpartition(":")[0] in LOOPBACK
