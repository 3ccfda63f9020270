"""Typed settings and the client configurations made from them.

`Settings` is plain Python; `holdfast.config.load` reads files and environment; only it imports pydantic.
"""

from __future__ import annotations

from holdfast.config.connection import GroupSettings, KafkaSettings, SecuritySettings
from holdfast.config.errors import Problem, SettingsError
from holdfast.config.extra import Extra
from holdfast.config.processing import (
    CommitSettings,
    FailureSettings,
    FlowSettings,
    OutputSettings,
    RestoreSettings,
    SnapshotSettings,
)
from holdfast.config.secret import Secret
from holdfast.config.settings import LogSettings, ServiceSettings, Settings

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
