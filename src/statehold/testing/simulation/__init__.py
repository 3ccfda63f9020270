"""Runs the processes of a service as tasks of one seeded loop, over a simulated Kafka, in virtual time."""

from statehold.errors import UsageError

try:
    import greenlet as _greenlet  # noqa: F401
except ImportError as error:
    raise UsageError(
        f"statehold.testing.simulation needs an extra ({error}). Next: pip install 'statehold[simulation]'"
    ) from error

from statehold.testing.simulation.cluster import SimulatedCluster, quick_settings
from statehold.testing.simulation.fuzz import FuzzedCrashes, fuzz_crashes
from statehold.testing.simulation.schedule import Schedule
from statehold.testing.simulation.shrink import shrink, timeline
from statehold.testing.simulation.simulation import InputRecord, RunReport, RunResult, Scenario, run

__all__ = [
    "FuzzedCrashes",
    "InputRecord",
    "RunReport",
    "RunResult",
    "Scenario",
    "Schedule",
    "SimulatedCluster",
    "fuzz_crashes",
    "quick_settings",
    "run",
    "shrink",
    "timeline",
]
