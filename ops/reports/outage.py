"""Says which addresses of Kafka do not answer, since when, and what to do next."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final

from statehold.config.settings import Settings
from statehold.kafka.survey import api_versions
from statehold.ops.remote import local_services

#: seconds for one address
_PATIENCE: Final = 1.0
_AT_ONCE: Final = 16
_PORT: Final = 9092


def silent(settings: Settings) -> dict[str, str]:
    """Return why no address of `kafka.bootstrap_servers` answers from here; empty if one does. Blocks for seconds.

    It asks before any login, so an answer does not mean that the brokers accept this client.
    """
    addresses = [each.strip() for each in settings.kafka.bootstrap_servers.split(",") if each.strip()]
    with ThreadPoolExecutor(min(_AT_ONCE, len(addresses)), thread_name_prefix="probe") as pool:
        causes = list(pool.map(lambda address: _cause(settings, address), addresses))
    found = {address: cause for address, cause in zip(addresses, causes, strict=True) if cause is not None}
    return found if len(found) == len(addresses) else {}


def _cause(settings: Settings, address: str) -> str | None:
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    host, port = (host, port) if colon and port.isdecimal() else (address, str(_PORT))
    try:
        api_versions.ask(host.strip("[]"), int(port), api_versions.tls_of(settings), _PATIENCE)
    except TimeoutError:
        return f"no answer within {_PATIENCE:g} s"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    return None


def causes_of(silent: dict[str, str]) -> str:
    """Return the cause of one address, or each address with its own."""
    return ", ".join(f"{address}: {cause}" for address, cause in silent.items() if len(silent) > 1) or next(
        iter(silent.values())
    )


def text_of(settings: Settings, group: str, silent: dict[str, str], seconds: float) -> str:
    """Return the error of a command that has waited for so long in an outage."""
    since = datetime.fromtimestamp(time.time() - seconds, UTC).strftime("%H:%M:%SZ")
    return (
        f"{settings.kafka.bootstrap_servers}: connect: the brokers do not answer: {causes_of(silent)}. This command "
        f"has asked since {since}, for {seconds:.0f} s.{of_services(group)} Next: check kafka.bootstrap_servers and "
        f"the network; `statehold doctor` tries every address; for brokers on this machine run `statehold dev status`"
    )


def of_services(group: str) -> str:
    """Return how long the service's processes on this machine have had no answer."""
    statuses = [each.status for each in local_services.of_service(group)] if group else []
    outages = [each["outage"] for each in statuses if each is not None and each.get("outage")]
    if not outages:
        return ""
    seconds = max(each["seconds"] for each in outages)
    since = datetime.fromtimestamp(time.time() - seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f" {group} on this machine has had no answer since {since}, for {seconds:.0f} s."
