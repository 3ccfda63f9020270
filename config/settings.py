"""Every setting of a service, as plain frozen values. Durations are seconds, sizes are bytes.

`Settings()` is complete and needs nothing else; `load()` fills it from outside.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from statehold.config.common.option import NAME_FORM, NAME_PATTERN, check_section, choice, seconds, text
from statehold.config.sections.connection import GroupSettings, KafkaSettings, SecuritySettings
from statehold.config.sections.doctor import DoctorSettings
from statehold.config.sections.effects_timers_sinks import EffectsSettings, SinkSettings, TimersSettings
from statehold.config.sections.ops import OpsSettings
from statehold.config.sections.processing import (
    CommitSettings,
    FailureSettings,
    FlowSettings,
    OutputSettings,
    RestoreSettings,
    SnapshotSettings,
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a service can be told. Raises SettingsError when values contradict each other."""

    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    service: ServiceSettings = field(default_factory=ServiceSettings)
    group: GroupSettings = field(default_factory=GroupSettings)
    commit: CommitSettings = field(default_factory=CommitSettings)
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    restore: RestoreSettings = field(default_factory=RestoreSettings)
    flow: FlowSettings = field(default_factory=FlowSettings)
    output: OutputSettings = field(default_factory=OutputSettings)
    failure: FailureSettings = field(default_factory=FailureSettings)
    effects: EffectsSettings = field(default_factory=EffectsSettings)
    timers: TimersSettings = field(default_factory=TimersSettings)
    sink: SinkSettings = field(default_factory=SinkSettings)
    log: LogSettings = field(default_factory=LogSettings)
    doctor: DoctorSettings = field(default_factory=DoctorSettings)
    ops: OpsSettings = field(default_factory=OpsSettings)

    def __post_init__(self) -> None:
        from statehold.config.cross_checks import check_agreement  # it needs this module's types

        check_agreement(self)


def sections() -> dict[str, type[Any]]:
    """Every section by its dotted name, in the order of the documentation."""
    tree: dict[str, type[Any]] = {"kafka": KafkaSettings, "kafka.security": SecuritySettings}
    for entry in fields(Settings):
        tree[entry.name] = entry.default_factory  # type: ignore[assignment]
    return tree
