"""Puts the parts together: settings and a handler become threads. The only place, with `wiring`, that names the
system's clocks.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any, Self

from statehold.admin.topics import START_PATIENCE, reaching, require, require_references
from statehold.balancer.manager import Manager
from statehold.common.access_rights import Right
from statehold.common.access_rights import service as rights_of_service
from statehold.common.names import Names
from statehold.common.version import __version__
from statehold.config.settings import Settings
from statehold.declared.attributes import declared
from statehold.declared.policies import failure_topics
from statehold.declared.serdes import check_schemas
from statehold.errors import Misconfigured, UsageError, of_thread
from statehold.handler import Handler
from statehold.kafka.admin.acl_check import require_rights
from statehold.kafka.admin.admin import Admin, TopicFacts
from statehold.kafka.clients.consumer import KafkaGroupConsumer
from statehold.kafka.common.error_actions import code_of
from statehold.kafka.common.error_advice import LOGIN
from statehold.ports import Cancelled
from statehold.reference import references
from statehold.runtime.feature_checks import check_combinations
from statehold.runtime.introspection import Overview
from statehold.runtime.shutdown import Shutdown
from statehold.runtime.topic_monitor import TopicMonitor
from statehold.runtime.wiring import ServiceWiring
from statehold.snapshot.gc_control import collect_less_often, thaw
from statehold.table import Table
from statehold.telemetry import metrics, status_gauges
from statehold.telemetry.event_history import RecentEvents
from statehold.telemetry.log_events import Log
from statehold.telemetry.registry import GaugeSample, ServiceMetrics

_STEP = 0.2


class Service:
    """One handler on one input topic: a member of the group `<namespace><name>`.

    `handler` is a `Handler` class, or a function without arguments that makes one; it is called once per partition and
    start. `settings` default to `statehold.config.Settings()`; `namespace` overrides `settings.service.namespace`.
    Several services may run in one process. `start`, `stop`, `wait` and `status` may be called by any thread; logging
    and, but for `run`, signal handlers are left alone.
    """

    def __init__(
        self,
        name: str,
        *,
        input: str,
        handler: type[Handler[Any]] | Callable[[], Handler[Any]],
        settings: Settings | None = None,
        namespace: str | None = None,
    ) -> None:
        given: object = input
        if not isinstance(given, str) or given.startswith("^"):
            raise UsageError(
                f"Service {name!r}: input={input!r} is a list or a pattern; a service reads one topic, make one "
                f"service each"
            )
        self.name, self.input, self.handler = name, input, handler
        self._namespace = namespace
        self.settings = Settings() if settings is None else settings
        #: its newest log events
        self.events = RecentEvents()
        #: where its ops server is reached; set before `start`, other instances' callers are told
        self.url = ""
        #: its group, the ends of its input, its states; None before `start`
        self.overview: Overview | None = None
        self._manager: Manager | None = None
        self._wiring: ServiceWiring | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._stop_asked = False
        self._failure: BaseException | None = None
        self._shutdown: Shutdown | None = None
        self._topic_monitor: TopicMonitor | None = None

    @property
    def settings(self) -> Settings:
        return self._settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        """`statehold run --config` gives the settings after the module has made the service."""
        if self._namespace is not None:
            settings = replace(settings, service=replace(settings.service, namespace=self._namespace))
        self._settings = settings
        self.names = Names(self.name, self.input, settings.service.namespace)
        #: its figures, for `/metrics`; `prometheus_client.REGISTRY.register(service.metrics)` adds them to a host's own
        self.metrics = ServiceMetrics(self.names.group)
        self.metrics.ask(self._gauges)

    # Life

    def run(self) -> None:
        """Start, and block until SIGTERM, SIGINT or a failure; then stop in good order.

        For the main thread of a daemon: signal handlers and the garbage collector's thresholds are set to suit it.
        Raises what `start` and `wait` raise.
        """
        collect_less_often()
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self.start()
            if self._stop_asked and self._manager is not None:
                self._manager.stop(self._settings.service.stop_timeout)
            self.wait()
        except Cancelled:
            self._new_log().info("stopped", cause="a signal, while it was starting")
        finally:
            self.stop()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def start(self) -> None:
        """Check the topics, join the group, return; partitions go live on their own threads.

        :raises StartError: the brokers or a schema registry do not answer, or a topic or schema is missing or does not
            fit; the message names the command. Nothing is running then.
        """
        if self._thread is not None:
            raise UsageError(f"service {self.name!r} was started already")
        check_combinations(self.handler_class, self._settings.snapshot.delta_interval)
        log = self._new_log()
        log.info("starting", input=self.input, brokers=self._settings.kafka.bootstrap_servers, version=__version__)
        shutdown = self._shutdown = Shutdown(self._settings, log, self._stop_within, self._ended)
        contact = shutdown.contact
        admin = Admin(self._settings, self.names.group, contact)
        facts = self._require(admin, log)
        check_schemas(self.handler_class, self.names.input)
        self.overview = Overview(admin, self.names, facts[self.names.input].partitions)
        self.metrics.service.set(metrics.INPUT_PARTITIONS, self.overview.partitions)
        if (budget := self._settings.snapshot.restore_budget) != "off":
            self.metrics.service.set(metrics.RESTORE_BUDGET, budget)
        wiring = self._wiring = ServiceWiring(self, admin, facts, log, contact, self.overview, self._rights())
        consumer = KafkaGroupConsumer(self._settings, self.names, log, contact, self._client_id())
        self._manager = wiring.manager = Manager(
            consumer, wiring.worker, self._settings, self.metrics, log, time.monotonic, wiring.joining()
        )
        self._topic_monitor = TopicMonitor(
            self._settings, self.names, admin, facts, log, self._manager.fail, self._manager.status
        )
        thread = threading.Thread(target=self._run_manager, name=f"statehold-{self.name}", daemon=True)
        shutdown.start(thread)
        wiring.start(consumer)
        self._topic_monitor.start()
        self._thread = thread
        thread.start()  # last: when it ends, it ends all the others

    def stop(self, timeout: float | None = None) -> None:
        """Commit what is processed, take a full if the settings say so, leave the group. Blocks; may be called twice.

        `timeout` is in seconds, by default `service.stop_timeout`; what has not committed by then is done again by the
        next owner.
        """
        if self._thread is None or self._manager is None:
            return
        within = self._settings.service.stop_timeout if timeout is None else timeout
        self._manager.stop(within)
        if self._shutdown is not None:
            self._shutdown.await_end(within)

    def drain(self, timeout: float | None = None) -> None:
        """As `stop`, but a static member leaves the group, too: the others have its partitions at once."""
        if self._manager is not None:
            self._manager.stop(self._settings.service.stop_timeout if timeout is None else timeout, leave=True)
        self.stop(timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the service has ended; False when `timeout` seconds passed first.

        :raises BaseException: whatever ended it, if it was not `stop`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        # In steps, so that a signal handler gets its turn on the main thread.
        while not self._ended.wait(_STEP if deadline is None else max(0.0, min(_STEP, deadline - time.monotonic()))):
            if deadline is not None and time.monotonic() >= deadline:
                return False
        failure = self._shutdown.why if self._shutdown is not None and self._shutdown.why else self._failure
        if failure is not None:
            raise failure
        return True

    def retry(self, partition: int | None = None) -> None:
        """Try a failed partition again, or all failed ones."""
        if self._manager is not None:
            self._manager.retry(partition)

    def status(self) -> dict[str, Any]:
        """What `statehold status` shows: the names, and phase, position and cause of each partition held here."""
        partitions = self._manager.status() if self._manager is not None else []
        if self.overview is not None:
            partitions = self.overview.with_ends(partitions)
        running = self._thread is not None and not self._ended.is_set()
        status = {
            "service": self.names.group,
            "input": self.input,
            "instance": self._settings.service.identity,
            "url": self.url,
            "running": running,
            # seconds since the manager's last turn; None before the first one
            "turned": round(time.monotonic() - turned, 3) if (turned := self._turned()) is not None else None,
            "ready": running and all(partition["phase"] == "live" for partition in partitions),
            "partitions": partitions,
            # copies of others' states, and how old each is; see docs/standby.md
            "standbys": self._wiring.standbys.status() if self._wiring is not None and self._wiring.standbys else [],
            # reference topics, and the version that is read here; see docs/reference.md
            "references": self._wiring.references.status() if self._wiring and self._wiring.references else [],
            # why there is none; None while there are some
            "waiting": self._manager.waiting if self._manager is not None and running else None,
            # there is none because the others have them all, and are alive
            "standby": running and self._manager is not None and self._manager.standby,
            # the group was joined, once; it was told to end
            "begun": self._thread is not None,
            "stopping": self._stop_asked or (self._manager is not None and self._manager.stopping),
        }
        if self._topic_monitor is not None:
            self._topic_monitor.tell(status)
        return self._shutdown.tell(status, running) if self._shutdown is not None else status

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Inside

    @property
    def handler_class(self) -> type[Handler[Any]]:
        """The class of the handlers, whatever makes them."""
        return self.handler if isinstance(self.handler, type) else type(self.handler())

    @property
    def tables(self) -> dict[str, Table[Any, Any]]:
        """As the handler declares them."""
        return declared(self.handler_class)[0]

    def _require(self, admin: Admin, log: Log) -> dict[str, TopicFacts]:
        """:raises StartError: a topic is missing or does not fit, or we may not do what we must."""

        def cancelled() -> bool:
            return self._stop_asked

        with reaching(self._settings):
            try:
                facts = require(admin, self.names, self._outputs(), cancelled, START_PATIENCE)
            except Misconfigured as error:
                if code_of(error) not in LOGIN:  # whoever is not let in is told nothing of rights
                    require_rights(self._settings, admin, self._rights(), log, cancelled)
                raise
            require_references(admin, self._references(), log)
        require_rights(self._settings, admin, self._rights(), log, cancelled)
        return facts

    def _references(self) -> list[str]:
        return [each.topic for each in references(self.handler_class).values()]

    def _rights(self) -> list[Right]:
        return rights_of_service(self.names, self._outputs(), self._references())

    def _outputs(self) -> list[str]:
        outputs = [output.topic for output in declared(self.handler_class)[1].values()]
        return outputs + failure_topics(self.handler_class, self.names)

    def _new_log(self) -> Log:
        return Log(recent=self.events, service=self.names.group, instance=self._settings.service.identity)

    def _client_id(self) -> str:
        """The member's name in the group: where its ops server is, for those who look for a key."""
        return f"{self.name}@{self.url}" if self.url and not self._settings.kafka.client_id else ""

    def _turned(self) -> float | None:
        return self._manager.turned if self._manager is not None else None

    def _gauges(self) -> Iterator[GaugeSample]:
        turned = self._turned()
        yield from status_gauges.of_status(
            self.status(), time.time() - time.monotonic() + turned if turned is not None else None
        )
        yield from self._topic_monitor.gauges() if self._topic_monitor is not None else ()

    def _stop_within(self, seconds: float) -> None:
        if self._manager is not None:
            self._manager.stop(seconds)

    def _run_manager(self) -> None:
        assert self._manager is not None
        log = self._new_log()
        try:
            self._manager.run()
            self._failure = self._manager.failure
        except BaseException as error:  # seen by wait() and by the process's exit code (invariant 10)
            log.error("thread_died", thread="manager", cause=f"{type(error).__name__}: {error}", exc_info=True)
            self._failure = of_thread(error)
        finally:
            log.info("stopped", cause=str(self._failure) if self._failure else None)
            assert self._wiring is not None
            self._wiring.close()
            if self._shutdown is not None:
                self._shutdown.close()
            if self._topic_monitor is not None:
                self._topic_monitor.close()
            thaw()
            self._ended.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop_asked = True
        if self._manager is not None:
            self._manager.stop(self._settings.service.stop_timeout)


def check(service: Any, where: str) -> Service:
    """:raises UsageError: what `module:name` names is no Service."""
    if not isinstance(service, Service):
        raise UsageError(f"{where} is a {type(service).__name__}, not a statehold.Service")
    return service
