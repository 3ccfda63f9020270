"""`statehold status`: shows what the services on this machine are doing, by asking their processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import typer
from rich.text import Text

from statehold.admin.topics import reaching
from statehold.common.exit_codes import Answer
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.kafka.admin.admin import Admin
from statehold.kafka.survey.cluster import ClusterSurvey
from statehold.ops.cli.common import output
from statehold.ops.cli.common.bars import figures
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.target import (
    Config,
    InputName,
    Overrides,
    Profile,
    SecretsDir,
    ServiceName,
    Target,
    names_of,
    quiet_settings,
)
from statehold.ops.cli.common.waiting import patient
from statehold.ops.remote import local_services
from statehold.ops.remote.control_sockets import LocalProcess
from statehold.ops.remote.remote_status import reach

#: seconds
_LONG_PENDING: Final = 10.0
#: seconds by which a partition's time may be ahead of the clock without a remark
_FAR_AHEAD: Final = 3600.0
_COLOURS: Final = {"live": "green", "failed": "red"}


def status(
    target: Target = None,
    name: ServiceName = None,
    input_topic: InputName = None,
    config: Config = None,
    overrides: Overrides = None,
    secrets_dir: SecretsDir = None,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Show the partitions of the services that run on this machine, or of one service wherever it runs.

    statehold status

    With --name alone it shows that service of this machine. With MODULE:SERVICE, or --name and --input, it reads the
    group's members from the brokers, and asks each by the ops server that it advertises (ops.advertised, ops.token).

    Exit code 0: every partition is live; 1: one is not, Kafka or a process does not answer; 3: no service runs.
    """
    if target is not None or input_topic is not None:
        settings = quiet_settings(config, overrides, secrets_dir, profile)
        with patient(settings):
            found = _everywhere(settings, names_of(settings, target, name, input_topic))
        _report(found, as_json, "the group has no member; `statehold run` starts one")
        return
    found = local_services.of_service(name)
    _report(found, as_json, "" if found else local_services.none_found(name))


def _everywhere(settings: Settings, names: Names) -> list[LocalProcess]:
    """:raises StartError: the brokers do not answer."""
    with reaching(settings):
        members = ClusterSurvey(settings, Admin(settings, names.group)).group(names.group, names.input).members
    return [
        LocalProcess(Path(f"{each.client.partition('@')[0]} on {each.host}.member"), each.status, each.trouble)
        for each in reach(settings, names.group, members)
    ]


def _report(found: Sequence[LocalProcess], as_json: bool, none: str) -> None:
    if as_json:
        output.print_json([_as_json(each) for each in found])
    if not found:
        output.complain(none)
        raise typer.Exit(Answer.NOTHING_RUNS)
    if not as_json:
        for each in found:
            _show(each)
    raise typer.Exit(Answer.YES if all(_is_well(each) for each in found) else Answer.NO)


def _as_json(found: LocalProcess) -> dict[str, Any]:
    return found.status or {"socket": str(found.path), "trouble": found.trouble}


def _is_well(found: LocalProcess) -> bool:
    status = found.status
    return (
        status is not None
        and not status.get("outage")
        and all(each["state"] == "live" for each in status.get("processes", ()))
        and all(each["phase"] == "live" for each in status["partitions"])
    )


def _show(found: LocalProcess) -> None:
    if found.status is None:
        output.report(f"{found.path.stem}: {found.trouble}")
        return
    status = found.status
    state = "running" if status["running"] else "not running"
    inputs = ", ".join(status.get("inputs", [status["input"]]))
    output.report(f"{status['service']} reads {inputs} of {status['brokers']}: {state}")
    output.report(f"instance {status['instance']}, pid {status['pid']}, statehold {status['version']}")
    for each in status.get("processes", ()):
        output.report(_process(each))
    if (roll := status.get("roll", {})) and roll["state"] == "stopped":
        output.report(f"the last rolling restart stopped: {roll['why']}")
    if outage := status.get("outage"):
        output.report(f"Kafka has been out of reach for {outage['seconds']:.0f} s: {outage['cause']}")
    if finding := status.get("topology"):
        output.report(f"the topics are not those that the service started with: {finding}")
    partitions: Sequence[dict[str, Any]] = status["partitions"]
    for said in filter(None, (_retention(partitions), scrub_shown(partitions))):
        output.report(said)
    if partitions:
        _show_partitions(
            partitions, f"--name {status['name']} --input {','.join(status.get('inputs', [status['input']]))}"
        )
    elif not outage:
        output.report("no partition: starting, or other members of the group have them all")
    for copy in status.get("standbys", ()):
        output.report(_copy(copy))


def _show_partitions(partitions: Sequence[dict[str, Any]], names: str) -> None:
    rows = []
    for each in partitions:
        phase = str(each["phase"])
        shown = Text("paused" if phase == "live" and each.get("paused") else phase, _COLOURS.get(phase, "yellow"))
        said = (
            _progress(each)
            or _paused(each, names)
            or _pending_effects(each)
            or _calls(each)
            or _requests(each)
            or _waiting(each, names)
            or _ahead(each)
            or output.compact(local_services.cause_of(each))
        )
        rows.append((each["partition"], shown, each["position"], each["transaction"], said))
    output.print_table(("partition", "phase", "position", "transaction", "progress or cause"), rows)


def _process(row: dict[str, Any]) -> str:
    """Describe a process of `statehold run --processes`."""
    held = ", ".join(map(str, row["partitions"])) or "none"
    why = f": {row['why']}" if row["why"] else ""
    restarts = f", {row['restarts']} restarts" if row["restarts"] else ""
    return f"process {row['process']}, pid {row['pid'] or 'none'}{restarts}: {row['state']}{why}; partitions: {held}"


def _copy(copy: dict[str, Any]) -> str:
    """Describe a standby replica of another instance's partition."""
    if (view := copy["loading"]) is not None:
        return f"copy of partition {copy['partition']}: {figures(view) if view else 'begins'}"
    return (
        f"copy of partition {copy['partition']}: transaction {copy['transaction']}, {copy['keys']} keys, at most "
        f"{copy['age']:.1f} s old"
    )


def scrub_shown(partitions: Sequence[dict[str, Any]]) -> str:
    """Describe the last passes of the scrub over the files of tables on disk; '' without a pass."""
    notes = {each["partition"]: note for each in partitions if (note := (each.get("live") or {}).get("scrub"))}
    if not notes:
        return ""
    now = time.time()
    partition, oldest = min(notes.items(), key=lambda each: float(each[1]["time"]))
    outcomes = Counter(str(note["outcome"]) for note in notes.values())
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    differed = [
        f"; the files of partition {name} differed {(now - note['differed']) / 3600:.1f} h ago: {note['cause']}"
        for name, note in notes.items()
        if note["differed"]
    ]
    return (
        f"scrub of files: {said}; the oldest pass ended {(now - oldest['time']) / 60:.0f} min ago (partition "
        f"{partition}, {oldest['rows']} rows){''.join(differed)}"
    )


def _retention(partitions: Sequence[dict[str, Any]]) -> str:
    """Describe the least hours of any partition; '' without a limit."""
    least = min((hours for each in partitions if (hours := each.get("retention_hours")) is not None), default=None)
    return "" if least is None else f"retention leaves the next record at least {least:.1f} h"


def _waiting(partition: dict[str, Any], names: str) -> str:
    """Describe failed records that are not resolved."""
    live = partition.get("live") or {}
    keys, later = live.get("blocked_keys"), live.get("later")
    said = [f"{keys} blocked key(s) (`statehold dlq list {names}`)"] if keys else []
    return "; ".join([*said, *([f"{later} record(s) wait for a retry"] if later else [])])


def _ahead(partition: dict[str, Any]) -> str:
    """Describe a partition whose own time is unusually far ahead of this machine's clock."""
    live = partition.get("live") or {}
    ahead = (live.get("time") or 0.0) - time.time()
    if ahead < _FAR_AHEAD:
        return ""
    return f"its time is {ahead / 3600:.1f} h ahead of the clock, so that later records are late (`statehold doctor`)"


def _paused(partition: dict[str, Any], names: str) -> str:
    by = partition.get("paused")
    return f"paused by {by}; `statehold resume {names}` continues it" if by else ""


def _pending_effects(partition: dict[str, Any]) -> str:
    """Describe effects that have been pending for longer than a moment."""
    live = partition.get("live") or {}
    oldest = _oldest(live.get("effects_since"))
    return f"{live['effects']} effects pending, {oldest}" if oldest else ""


def _calls(partition: dict[str, Any]) -> str:
    """Describe durable calls that are dead, or have been pending for longer than a moment."""
    live = partition.get("live") or {}
    oldest, dead = _oldest(live.get("calls_since")), live.get("calls_dead")
    said = [f"the other system of {', '.join(down)} is down"] if (down := live.get("calls_down")) else []
    said += [f"{dead} dead call(s)"] if dead else []
    said += [f"{live['calls']} calls pending, {oldest}"] if oldest else []
    return "; ".join(said)


def _requests(partition: dict[str, Any]) -> str:
    """Describe requests that have had no answer for longer than a moment."""
    live = partition.get("live") or {}
    oldest = _oldest(live.get("requests_since"))
    return f"{live['requests_waiting']} requests without an answer, {oldest}" if oldest else ""


def _oldest(since: float | None) -> str:
    """Say for how long the oldest has waited; '' if none has for longer than a moment."""
    waited = time.time() - since if since else 0.0
    return f"the oldest for {waited:.0f} s" if waited >= _LONG_PENDING else ""


def _progress(partition: dict[str, Any]) -> str:
    """Describe the progress of a restore or replay, or an outage of Kafka."""
    if trouble := partition.get("unanswered"):
        return f"waits for Kafka for {trouble['seconds']:.0f} s: {trouble['cause']}"
    view = partition.get("restore")
    return f"{view['step']} {view['position']} of {view['end']}: {figures(view)}" if view else ""
