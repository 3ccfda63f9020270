"""Settings of the process: its name on the cluster, its strictness, its log."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Literal

from statehold.config.common.option import NAME_FORM, NAME_PATTERN, check_section, choice, seconds, text


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Who this service is on the cluster, and how strict it runs."""

    namespace: str = text(
        "",
        "Prefix of the group, the transactional ids and our topics, such as 'staging.'. Two environments on "
        "one cluster must not fence each other. Ends with '.', '_' or '-', so that 'a' + 'bc' is never 'ab' "
        "+ 'c'.",
        pattern=r"|[A-Za-z0-9][A-Za-z0-9._-]{0,98}[._-]",
        form="letters, digits, '.', '_' and '-', with one of the last three at the end",
    )
    instance: str = text(
        "",
        "Name of this process in logs and records; empty uses host name and process id.",
        pattern=NAME_PATTERN,
        form=NAME_FORM,
    )
    code_version: str = text(
        "",
        "What you call the release of your own code, such as a commit. Each mark and full names it, and an error that "
        "needs the code that wrote them.",
        pattern=r"[ -~]{0,100}",
        form="at most 100 characters of ASCII",
    )
    mode: Literal["production", "development"] = choice(
        "production",
        "development also checks that table values are not changed in place, and allows unverified "
        "certificates and librdkafka's debug log.",
        "production",
        "development",
    )
    stop_timeout: float = seconds(
        25.0,
        "How long a stop (SIGTERM) may take: drains, the last fulls, leaving the group. Less than the "
        "supervisor's own patience: 30 s in Kubernetes, 90 s in systemd.",
        low=1.0,
        high=3600.0,
    )

    topology_interval: float = seconds(
        2.0,
        "How often it is looked whether the topics are still the ones that the service started with (ids, partition "
        "counts), on a thread of its own. A partition whose topic was made anew or grown fails, and says how to go on; "
        "until then the brokers hand out the new topic's records without a word, so this bounds how many are handled.",
        low=0.5,
        high=3600.0,
    )

    def __post_init__(self) -> None:
        check_section(self, "service")

    @property
    def identity(self) -> str:
        """`instance`, or host name and process id of the calling process."""
        return self.instance or f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What the process says."""

    format: Literal["auto", "json", "console"] = choice(
        "auto", "auto: console on a terminal, else one JSON object a line.", "auto", "json", "console"
    )
    level: Literal["debug", "info", "warning", "error"] = choice(
        "info", "Least severe event that is logged.", "debug", "info", "warning", "error"
    )

    def __post_init__(self) -> None:
        check_section(self, "log")
