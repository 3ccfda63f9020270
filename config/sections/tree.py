"""All sections of the settings, without the checks of one section against another."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from statehold.config.sections.connection import GroupSettings, KafkaSettings, SecuritySettings
from statehold.config.sections.doctor import DoctorSettings
from statehold.config.sections.effects_timers_sinks import (
    CallsSettings,
    EffectsSettings,
    SinkSettings,
    TimersSettings,
    TimeSettings,
)
from statehold.config.sections.inputs import InputsSettings, RekeySettings
from statehold.config.sections.ops import OpsSettings
from statehold.config.sections.processing import (
    CommandSettings,
    CommitSettings,
    FailureSettings,
    FlowSettings,
    OutputSettings,
    RestoreSettings,
    SnapshotSettings,
)
from statehold.config.sections.service import LogSettings, ServiceSettings
from statehold.config.sections.state import StateSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """One field for each section. Use `Settings`, which also checks that the sections agree."""

    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    service: ServiceSettings = field(default_factory=ServiceSettings)
    group: GroupSettings = field(default_factory=GroupSettings)
    commit: CommitSettings = field(default_factory=CommitSettings)
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    state: StateSettings = field(default_factory=StateSettings)
    restore: RestoreSettings = field(default_factory=RestoreSettings)
    flow: FlowSettings = field(default_factory=FlowSettings)
    inputs: InputsSettings = field(default_factory=InputsSettings)
    rekey: RekeySettings = field(default_factory=RekeySettings)
    output: OutputSettings = field(default_factory=OutputSettings)
    commands: CommandSettings = field(default_factory=CommandSettings)
    failure: FailureSettings = field(default_factory=FailureSettings)
    effects: EffectsSettings = field(default_factory=EffectsSettings)
    time: TimeSettings = field(default_factory=TimeSettings)
    calls: CallsSettings = field(default_factory=CallsSettings)
    timers: TimersSettings = field(default_factory=TimersSettings)
    sink: SinkSettings = field(default_factory=SinkSettings)
    log: LogSettings = field(default_factory=LogSettings)
    doctor: DoctorSettings = field(default_factory=DoctorSettings)
    ops: OpsSettings = field(default_factory=OpsSettings)


def sections() -> dict[str, type[Any]]:
    """Every section by its dotted name, in the order of the documentation."""
    tree: dict[str, type[Any]] = {"kafka": KafkaSettings, "kafka.security": SecuritySettings}
    for entry in fields(Sections):
        tree[entry.name] = entry.default_factory  # type: ignore[assignment]
    return tree
