"""Typed settings and the client configurations made from them.

`Settings` is plain Python. `load` reads files and the environment, and is the only part that imports pydantic.
"""

from __future__ import annotations

from holdfast.config.errors import Problem, SettingsError
from holdfast.config.secret import Secret
from holdfast.config.settings import (
    CommitSettings,
    FailureSettings,
    FlowSettings,
    GroupSettings,
    KafkaSettings,
    LogSettings,
    OutputSettings,
    RestoreSettings,
    SecuritySettings,
    ServiceSettings,
    Settings,
    SnapshotSettings,
)


__all__ = [
    "CommitSettings",
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
