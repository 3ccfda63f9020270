"""Typed settings and the client configurations made from them.

`Settings` is plain Python; `statehold.config.load` reads files and environment; only it imports pydantic.
"""

from __future__ import annotations

from statehold.config.common.errors import Problem, SettingsError
from statehold.config.common.secret import Secret
from statehold.config.librdkafka.extra import Extra
from statehold.config.sections.connection import GroupSettings, KafkaSettings, SecuritySettings
from statehold.config.sections.processing import (
    CommitSettings,
    FailureSettings,
    FlowSettings,
    OutputSettings,
    RestoreSettings,
    SnapshotSettings,
)
from statehold.config.settings import LogSettings, ServiceSettings, Settings

__all__ = [
    "CommitSettings",
    "Extra",
    "FailureSettings",
    "FlowSettings",
    "GroupSettings",
    "KafkaSettings",
    "LogSettings",
    "OutputSettings",
    "Problem",
    "RestoreSettings",
    "Secret",
    "SecuritySettings",
    "ServiceSettings",
    "Settings",
    "SettingsError",
    "SnapshotSettings",
]
