"""The door: starts the processes of one service, and follows, restarts and stops them until the end."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from statehold.config.settings import Settings
from statehold.errors import StartError, StateholdError, UsageError
from statehold.ops.http.bounded_server import BoundedServer
from statehold.ops.http.guard import RequestGuard, SocketGuard
from statehold.ops.http.server import listen, reachable, url_of
from statehold.ops.process.sd_notify import Notify, watchdog_seconds
from statehold.ops.remote import control_sockets
from statehold.ops.supervisor.aggregate import ProcessView
from statehold.ops.supervisor.control import FleetControl
from statehold.ops.supervisor.fleet import MOST, Fleet, Order
from statehold.ops.supervisor.launch import STATEHOLD, ProcessCommand, automatic, available_cpus, cores
from statehold.ops.supervisor.notify import FleetMessages
from statehold.ops.supervisor.processes import MemberProcess, ProcessStarter, Trial
from statehold.ops.supervisor.routes import FleetRoutes
from statehold.telemetry.log_events import Log

#: seconds between two turns of the loop
_TURN: Final = 0.1
#: seconds beyond `service.stop_timeout` until SIGKILL
_GRACE: Final = 5.0
#: seconds that a stuck process may take without systemd's watchdog
_PATIENCE: Final = 60.0
_NOTIFY_EVERY: Final = 1.0
_COMMAND: Final = 10.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class SupervisorPlan:
    """What `statehold run --processes` was asked for. `arguments`: of a process, without the supervisor's options."""

    target: str
    arguments: list[str]
    #: a number, or `auto`
    processes: str
    pin: bool = False
    #: what runs with the arguments
    program: tuple[str, ...] = STATEHOLD


def supervise(plan: SupervisorPlan, settings: Settings) -> int:
    """Run the processes until SIGTERM, SIGINT or the end of all; return the exit code. For the main thread.

    SIGHUP begins a rolling restart.

    :raises UsageError: the number of processes is not valid, or this system cannot pin threads.
    """
    count = number_of(plan.processes)
    if plan.pin and not hasattr(os, "sched_setaffinity"):
        raise UsageError("--pin: this system cannot pin threads to cores. Next: leave it out")
    return Supervisor(plan, settings, count).run()


def number_of(text: str) -> int:
    """Return the number of processes. :raises UsageError: it is neither `auto` nor a number within bounds."""
    if text == "auto":
        return min(MOST, automatic(available_cpus()))
    if not text.isdecimal() or len(text) > 6 or not 1 <= int(text) <= MOST:
        raise UsageError(f"--processes {text}: write a number from 1 to {MOST}, or auto")
    return int(text)


class Supervisor:
    """Owns the processes on one thread; servers read values that are replaced whole, and leave commands in a queue."""

    def __init__(self, plan: SupervisorPlan, settings: Settings, count: int) -> None:
        self.target, self.settings = plan.target, settings
        self.instance = settings.service.instance or f"{socket.gethostname()}-{os.getpid()}"
        #: of the ops server
        self.url = ""
        self._plan = plan
        self._watchdog = watchdog_seconds(os.environ)
        self._fleet = Fleet(count, settings.service.stop_timeout + _GRACE, self._watchdog or _PATIENCE)
        self._log = Log(supervisor=self.instance)
        self._turned = time.monotonic()
        self._members: dict[int, MemberProcess] = {}
        self._views: list[ProcessView] = []
        self._trial: Trial | None = None
        self._changes: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._signals: list[int] = []
        self._servers: list[BoundedServer] = []
        self._socket = Path()
        self._notify = Notify.of(os.environ)
        self._messages, self._notified = FleetMessages(), 0.0
        self._starter: ProcessStarter | None = None

    def run(self) -> int:
        """Return the exit code."""
        on_terminal = os.isatty(2)
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, self._on_signal)
        try:
            self._open()
            while not self._fleet.over:
                self._turn(on_terminal)
                self._wake.wait(_TURN)
                self._wake.clear()
        finally:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            self._close()
        self._log.info("stopped", exit_code=self._fleet.code)
        return self._fleet.code

    # What the servers read; any thread

    def views(self) -> list[ProcessView]:
        return self._views

    def members(self) -> Mapping[int, MemberProcess]:
        return self._members

    def turned(self) -> float:
        """Return the seconds since the loop has turned."""
        return time.monotonic() - self._turned

    def state(self) -> dict[str, Any]:
        """Return what `/status` says of the supervisor itself."""
        roll = self._fleet.roll
        return {
            "wanted": self._fleet.wanted,
            "stopping": self._fleet.stopping,
            "roll": {"state": roll.state, "process": roll.number or None, "why": roll.why or None},
        }

    def change(self, step: Callable[[Fleet, float], None]) -> None:
        """Run a step of the fleet on the main thread; return after it.

        :raises StateholdError: that of the step, or the supervisor does not answer.
        """
        done = threading.Event()
        failed: list[StateholdError] = []

        def run() -> None:
            try:
                step(self._fleet, time.monotonic())
            except StateholdError as error:
                failed.append(error)
            done.set()

        self._changes.put(run)
        self._wake.set()
        if not done.wait(_COMMAND):
            raise StartError("the supervisor's loop does not turn")
        if failed:
            raise failed[0]

    # The loop

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)  # a lock could be held by the code that the signal interrupts

    def _turn(self, on_terminal: bool) -> None:
        now = self._turned = time.monotonic()
        while self._signals:
            self._obey(self._signals.pop(0), on_terminal, now)
        while not self._changes.empty():
            self._changes.get_nowait()()
        for number, member in list(self._members.items()):
            if (code := member.exit_code()) is not None:
                self._members = {each: other for each, other in self._members.items() if each != number}
                self._ready_to_start.ended(number)
                self._log.info("process_ended", process=number, pid=member.pid, exit_code=code)
                self._fleet.ended(number, code, now)
            else:
                self._fleet.seen(number, member.sight(), now)
        if self._trial is not None and (why := self._trial.verdict()) is not None:
            self._trial = None
            self._fleet.checked(why, now)
        for order in self._fleet.next(now):
            self._do(order, now)
        self._share()
        self._show()
        self._log_notes()
        self._tell(now)

    def _obey(self, number: int, on_terminal: bool, now: float) -> None:
        if number == signal.SIGHUP and not (on_terminal and _terminal_is_gone()):
            try:
                self._fleet.restart(now)
            except UsageError as error:
                self._log.warning("roll_stopped", cause=str(error))
            return
        if not self._fleet.stopping:
            self._log.info("stopping", cause=signal.Signals(number).name)
        self._fleet.stop(now)

    def _do(self, order: Order, now: float) -> None:
        member = self._members.get(order.number)
        match order.verb:
            case "start":
                self._start(order.number, now)
            case "check":
                self._try_release(now)
            case "stop" if member is not None:
                member.signal(signal.SIGTERM)
            case "drain" if member is not None:
                member.drain()
            case "abort" if member is not None:
                member.signal(signal.SIGABRT)
            case "kill" if member is not None:
                member.signal(signal.SIGKILL)

    def _start(self, number: int, now: float) -> None:
        try:
            member = self._ready_to_start.start(number, self._fleet.wanted)
        except OSError as error:
            self._log.error("process_ended", process=number, cause=f"it cannot be started: {error}")
            self._fleet.ended(number, 1, now)
            return
        self._members = {**self._members, number: member}
        self._log.info("process_started", process=number, pid=member.pid, url=self._ready_to_start.url(number) or None)

    def _try_release(self, now: float) -> None:
        try:
            self._trial = self._ready_to_start.trial()
        except OSError as error:
            self._fleet.checked(f"the system starts no process: {error}", now)

    def _share(self) -> None:
        """Send the running processes the number of those that share the memory, once it changes."""
        among = self._fleet.wanted
        for member in self._members.values():
            if member.status is not None and member.among != among:
                member.among = among
                member.tell(f"/share?processes={among}")

    def _show(self) -> None:
        shown = []
        for number, slot in sorted(self._fleet.slots.items()):
            member = self._members.get(number)
            shown.append(
                ProcessView(
                    number=number,
                    instance=self._ready_to_start.name(number),
                    url=self._ready_to_start.url(number),
                    state=slot.state,
                    why=slot.why,
                    restarts=slot.restarts,
                    pid=member.pid if member is not None else None,
                    exit_code=slot.code,
                    status=member.status if member is not None else None,
                    silent=member.sight().silent if member is not None else 0.0,
                )
            )
        self._views = shown

    def _log_notes(self) -> None:
        notes, self._fleet.notes = self._fleet.notes, []
        for level, event, fields in notes:
            getattr(self._log, level)(event, **fields)

    def _tell(self, now: float) -> None:
        if self._notify is None or now - self._notified < _NOTIFY_EVERY:
            return
        self._notified = now
        roll = self._fleet.roll
        said = f"rolling restart, process {roll.number}" if roll.state == "running" else ""
        if roll.state == "stopped":
            said = f"the last rolling restart stopped: {roll.why}"
        self._notify.send(
            **self._messages.next(self._views, said, stopping=self._fleet.stopping, watched=self._watchdog is not None)
        )

    # Servers

    @property
    def _ready_to_start(self) -> ProcessStarter:
        assert self._starter is not None, "opened by run"
        return self._starter

    def _open(self) -> None:
        """Open the servers; continue without one that cannot be opened, because the processes must run."""
        ops = self.settings.ops
        routes = FleetRoutes(self, RequestGuard(ops, exposed=not ops.local_only))
        if ops.listen != "off":
            try:
                server = listen(ops.listen, routes.answer)
                self._serve(server, "ops")
                self.url = ops.advertised or reachable(server)
                self._log.info("ops_open", url=url_of(server))
            except StartError as error:
                self._log.error("ops_closed", cause=str(error))
        control = FleetControl(self, FleetRoutes(self, SocketGuard(ops)))
        try:
            name = self.target.replace("/", ".").replace(":", ".")
            listener, self._socket = control_sockets.listen(control_sockets.own_directory(), name)
            self._serve(BoundedServer(listener, control.answer), "control")
            self._log.info("control_open", path=str(self._socket))
        except OSError as error:
            self._log.warning(
                "control_closed", cause=f"statehold status and restart cannot reach this process: {error}"
            )
        try:
            command = ProcessCommand(self._plan.arguments, self.instance, self._plan.program)
            self._starter = ProcessStarter(command, url=self.url, cores=cores() if self._plan.pin else None)
        except OSError as error:
            raise StartError(
                f"--processes: the processes need a directory for their control sockets: {error}. Next: set "
                "XDG_RUNTIME_DIR to a directory of this user"
            ) from error

    def _serve(self, server: BoundedServer, name: str) -> None:
        server.begin(f"{name}-supervisor")
        self._servers.append(server)

    def _close(self) -> None:
        """Leave no socket and no thread. After an error of this loop its processes commit and end."""
        for member in self._members.values():
            member.signal(signal.SIGTERM)
        if self._trial is not None:
            self._trial.end()
        for server in self._servers:
            server.end()
        if self._socket.name:
            self._socket.unlink(missing_ok=True)
        if self._notify is not None:
            self._notify.send(STOPPING=1, STATUS=f"ended with exit code {self._fleet.code}")
            self._notify.close()


def _terminal_is_gone() -> bool:
    """Return whether SIGHUP came from a terminal that was closed."""
    with contextlib.suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        return False
    return True
