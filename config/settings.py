"""Every setting of a service, as plain frozen values. Durations are seconds, sizes are bytes.

`Settings()` is complete and needs nothing else; `load()` fills it from outside.
"""

from __future__ import annotations

from dataclasses import dataclass

from statehold.config.cross_checks import check_agreement
from statehold.config.sections.tree import Sections


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Sections):
    """All settings of a service. Raises SettingsError if two of them contradict each other."""

    def __post_init__(self) -> None:
        check_agreement(self)
