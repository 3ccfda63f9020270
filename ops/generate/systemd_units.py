"""Generates the systemd units of one service and its instances on one machine, from the shipped units."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from statehold.errors import UsageError

#: seconds beyond service.stop_timeout until systemd kills the process
_BEYOND_STOP: Final = 15
#: of the machine's memory, for all instances together
_SHARE: Final = 75
#: the first systemd with RestartSteps
_STEPS_SINCE: Final = 254
_MOST: Final = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPlan:
    """The parameters of one service's units. `config` and `secrets` are absolute paths."""

    name: str
    subject: str
    config: Path
    instances: int
    stop_timeout: float
    #: of the directory that holds the module
    directory: Path
    #: the `statehold` to run
    program: Path
    secrets: Path | None = None
    user: str = "statehold"
    #: as MemoryMax takes it; '' divides three quarters of the machine among the instances
    memory: str = ""
    #: instance i's ops server listens on this port + i; 0: on the first free one
    ops_port: int = 8470
    #: the systemd that the units are for
    systemd: int = 0
    compaction: bool = True
    #: processes of each instance, a number or `auto`; '': one, without a supervisor
    processes: str = ""


def units(plan: UnitPlan) -> dict[str, str]:
    """Return the content of each file below /etc/systemd/system.

    :raises UsageError: the plan is invalid.
    """
    _check(plan)
    unit = f"statehold-{plan.name}"
    made = {f"{unit}@.service": _service(plan), f"{unit}.target": _target(plan)}
    if plan.ops_port:
        for number in range(1, plan.instances + 1):
            made[f"{unit}@{number}.service.d/instance.conf"] = (
                f"# The ops server of instance {number}: a fixed port for Prometheus.\n[Service]\n"
                f"Environment=STATEHOLD_OPS__LISTEN=127.0.0.1:{plan.ops_port + number}\n"
            )
    if plan.compaction:
        made[f"{unit}-compact.service"] = _compact(plan)
        made[f"{unit}-compact.timer"] = _timer(plan)
    return made


def shipped(name: str) -> str:
    """Return a unit of deploy/systemd."""
    return (files("statehold.deploy") / "systemd" / name).read_text(encoding="utf-8")


def version_of(text: str) -> int:
    """Return the number in the output of `systemctl --version`, or 0."""
    found = re.match(r"systemd (\d+)", text)
    return int(found[1]) if found else 0


def _service(plan: UnitPlan) -> str:
    options = f"--profile production --config {plan.config}{_secrets(plan)} --json"
    if plan.processes:
        options += f" --processes {plan.processes}"
    text = _with(
        shipped("statehold@.service"),
        {
            "Description": f"statehold service {plan.name}, instance %i",
            "User": plan.user,
            "Group": plan.user,
            "WorkingDirectory": str(plan.directory),
            "ExecStart": f"{plan.program} run {plan.subject} {options}",
            "TimeoutStopSec": f"{math.ceil(plan.stop_timeout) + _BEYOND_STOP}s",
            "MemoryMax": plan.memory or f"{_SHARE // plan.instances}%",
            # One name for the life of the machine: in logs, in marks, and in the group where membership is static.
            "EnvironmentFile": None,
            "Environment": f"PYTHONUNBUFFERED=1 STATEHOLD_SERVICE__INSTANCE=%l-{plan.name}-%i",
            "WantedBy": None,
        },
    )
    text = _headed(text, f"Instance %i of the statehold service {plan.name}, written by `statehold deploy systemd`.")
    text = text.replace("\n[Service]\n", f"PartOf=statehold-{plan.name}.target\n\n[Service]\n", 1)
    if plan.processes:
        # A rolling restart of the processes.
        text = re.sub(r"^(ExecStart=.*\n)", r"\1ExecReload=/bin/kill -HUP $MAINPID\n", text, flags=re.MULTILINE)
    if plan.systemd >= _STEPS_SINCE:
        text = text.replace("RestartSec=2s\n", "RestartSec=2s\nRestartSteps=5\nRestartMaxDelaySec=60s\n")
    return text.replace("\n[Install]\n", "").rstrip("\n") + "\n"


def _target(plan: UnitPlan) -> str:
    wants = " ".join(f"statehold-{plan.name}@{number}.service" for number in range(1, plan.instances + 1))
    return (
        f"# The {plan.instances} instances of {plan.name} on this machine, to start and stop together.\n"
        f"[Unit]\nDescription=statehold service {plan.name}, {plan.instances} instances\nWants={wants}\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


def _compact(plan: UnitPlan) -> str:
    metrics = f"--metrics-file ${{METRICS_DIRECTORY}}/statehold-compact-{plan.name}.prom"
    text = _with(
        shipped("statehold-compact@.service"),
        {
            "Description": f"statehold compaction of {plan.name}",
            "User": plan.user,
            "Group": plan.user,
            "WorkingDirectory": str(plan.directory),
            "EnvironmentFile": None,
            "ExecStart": f"{plan.program} compact {plan.subject} --config {plan.config}{_secrets(plan)} {metrics}",
        },
    )
    return _headed(text, f"One compaction of {plan.name}; started by statehold-{plan.name}-compact.timer, or by hand.")


def _secrets(plan: UnitPlan) -> str:
    return f" --secrets-dir {plan.secrets}" if plan.secrets else ""


def _timer(plan: UnitPlan) -> str:
    text = _with(
        shipped("statehold-compact@.timer"), {"Description": f"statehold compaction of {plan.name}, every night"}
    )
    return _headed(text, f"systemctl enable --now statehold-{plan.name}-compact.timer")


def _with(text: str, values: dict[str, str | None]) -> str:
    """Replace the first line of each name by its new value; None removes the line."""
    for name, value in values.items():
        line = re.compile(rf"^{name}=.*\n", re.MULTILINE)
        assert line.search(text) is not None, f"the shipped unit has no {name}="
        text = line.sub("" if value is None else f"{name}={value}\n".replace("\\", r"\\"), text, count=1)
    return text


def _headed(text: str, head: str) -> str:
    """Replace the comment at the beginning."""
    return f"# {head}\n" + text[text.index("[Unit]\n") :]


def _check(plan: UnitPlan) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", plan.name):
        raise UsageError(f"{plan.name!r} cannot be part of a unit's name: letters, digits, '.', '_' and '-'")
    if not 1 <= plan.instances <= _MOST:
        raise UsageError(f"--instances {plan.instances}: from 1 to {_MOST}")
    if plan.memory and not re.fullmatch(r"\d+[KMGT]?|\d{1,2}%|infinity", plan.memory):
        raise UsageError(f"--memory {plan.memory}: write bytes as systemd does, such as 4G, or a share such as 30%")
    if plan.ops_port and not 0 < plan.ops_port <= 65_535 - plan.instances:
        raise UsageError(f"--ops-port {plan.ops_port}: from 1 to {65_535 - plan.instances}, or 0 for any free port")
    if plan.processes and not re.fullmatch(r"auto|[1-9]\d{0,2}", plan.processes):
        raise UsageError(f"--processes {plan.processes}: write a number, or auto")
    paths = [plan.config, plan.directory, plan.program, *([plan.secrets] if plan.secrets else [])]
    for each in (*map(str, paths), plan.subject):
        if re.search(r"[\s%$\"'\\;]", each):
            raise UsageError(f"{each!r}: spaces, quotes, '%', '$' and ';' mean something else in a unit")
