"""Typed settings and the client configurations made from them.

`Settings` holds the values; `load` reads them from files, the environment and the command line.
"""

from __future__ import annotations

from statehold.config.common.errors import Problem, SettingsError
from statehold.config.common.secret import Secret
from statehold.config.librdkafka.extra import Extra
from statehold.config.loading import load
from statehold.config.sections.connection import GroupSettings, KafkaSettings, SecuritySettings
from statehold.config.sections.processing import (
    CommitSettings,
    FailureSettings,
    FlowSettings,
    OutputSettings,
    RestoreSettings,
    SnapshotSettings,
)
from statehold.config.sections.service import LogSettings, ServiceSettings
from statehold.config.settings import Settings

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
    "load",
]
