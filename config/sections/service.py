"""Settings of the process: its name on the cluster, its strictness, its log."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Literal

from statehold.config.common.option import NAME_FORM, NAME_PATTERN, Section, choice, seconds, text


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings(Section, name="service"):
    """The service's name on the cluster, and how strict it is."""

    namespace: str = text(
        "",
        "Prefix of the group, the transactional ids and the service's topics, such as 'staging.'. It keeps two "
        "environments on one cluster from fencing each other. Ends with '.', '_' or '-', so that 'a' + 'bc' is "
        "never 'ab' + 'c'.",
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
        "Name of your code's release, such as a commit id. Each commit record and full snapshot names it, as "
        "does an error that needs the code that wrote them.",
        pattern=r"[ -~]{0,100}",
        form="at most 100 characters of ASCII",
    )
    mode: Literal["production", "development"] = choice(
        "production",
        "development also checks that table values are not changed in place, and allows unverified "
        "certificates and librdkafka's debug log.",
    )
    stop_timeout: float = seconds(
        25.0,
        "How long a stop (SIGTERM) may take: drains, the last full snapshots, leaving the group. Less than the "
        "supervisor's timeout: 30 s in Kubernetes, 90 s in systemd.",
        low=1.0,
        high=3600.0,
    )
    freeze_exit: float | Literal["off"] = seconds(
        60.0,
        "`statehold run` exits with code 14 and the stacks of all threads if no Python thread has run for so long: a "
        "C function waits with the interpreter's lock. off: it does not. A program with an embedded service uses "
        "FreezeGuard instead.",
        low=2.0,
        high=86_400.0,
    )
    state_dir: str = text(
        "auto",
        "Directory for one small file per partition, by which a restarted process knows that the last one died, and at "
        "which record. auto: systemd's STATE_DIRECTORY, else statehold in XDG_STATE_HOME or in ~/.local/state, else "
        "statehold-<uid> in the temporary directory. It has to outlive the process, not the machine. off: none.",
        pattern=r"auto|off|/.*",
        form="auto, off or an absolute path",
    )
    topology_interval: float = seconds(
        2.0,
        "How often a thread checks that the topics are still the ones that the service started with (ids, "
        "partition counts). A partition whose topic was recreated or grown fails and names the next step. A "
        "recreated input does not wait for this check: the consumer detects it before it delivers a record.",
        low=0.5,
        high=3600.0,
    )

    @property
    def identity(self) -> str:
        """`instance`, or host name and process id of the calling process."""
        return self.instance or f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings(Section, name="log"):
    """What the process logs."""

    format: Literal["auto", "json", "console"] = choice(
        "auto", "auto: console on a terminal, else one JSON object a line."
    )
    level: Literal["debug", "info", "warning", "error"] = choice("info", "Least severe event that is logged.")
