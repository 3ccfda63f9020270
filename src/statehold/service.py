"""The service: builds its threads from settings and a handler, starts and stops them.

This module and `runtime` choose the system's clocks. `tests/unit/test_clocks.py` lists the modules that use one.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from statehold.admin.topics import START_PATIENCE, reaching, require, require_references
from statehold.api.handler import HandlerFactory
from statehold.balancer.manager import Manager
from statehold.bound.inputs import key_types, value_types
from statehold.bound.rekey import with_rekeys
from statehold.bound.serdes import check_schemas
from statehold.bound.topics import class_of, output_topics, reference_topics, replies_of, with_keys
from statehold.common.access_rights import Right
from statehold.common.access_rights import service as rights_of_service
from statehold.common.names import MOST_INPUTS, Names
from statehold.common.version import __version__
from statehold.config.settings import Settings
from statehold.errors import Misconfigured, UsageError, class_and_text, of_thread
from statehold.kafka.admin.acl_check import require_rights
from statehold.kafka.admin.admin import Admin, TopicFacts
from statehold.kafka.clients.consumer import KafkaGroupConsumer
from statehold.kafka.common.error_actions import code_of
from statehold.kafka.common.error_advice import LOGIN
from statehold.ports import Cancelled
from statehold.runtime.feature_checks import check_combinations, check_storage
from statehold.runtime.introspection import Overview
from statehold.runtime.shutdown import Shutdown
from statehold.runtime.topic_monitor import TopicMonitor
from statehold.runtime.wiring import ServiceWiring
from statehold.snapshot.gc_control import collect_less_often, thaw
from statehold.telemetry import metrics, status_gauges
from statehold.telemetry.log_events import Log, RecentEvents
from statehold.telemetry.registry import GaugeSample, ServiceMetrics

if TYPE_CHECKING:
    from statehold.client.client import Client

_STEP = 0.2


class Service:
    """Runs one handler on one input topic, or on several, as a member of the group `<namespace><name>`.

    `inputs` names several topics with the same number of partitions; the handler has a method for each
    (`statehold.on`). The first one gives statehold's topics their names, so it has to stay the first. `handler` is a
    `Handler` class, or a function without arguments that returns a handler. It is called once per partition and start.
    `key` is the type or serde of the keys of all inputs for which the handler declares none, as for `on`; another one
    than that of `Handler[...]` is an error. `settings`
    defaults to `statehold.config.Settings()`. `namespace` overrides `settings.service.namespace`. Several
    services may run in one process. Any thread may call `start`, `stop`, `wait` and `status`. The service does not
    configure logging, and only `run` sets signal handlers.

    :raises UsageError: `input` is a list or a pattern, neither or both of `input` and `inputs` are given, such
        keys are not supported, or `settings` are not Settings.
    """

    def __init__(
        self,
        name: str,
        *,
        input: str = "",
        inputs: Sequence[str] = (),
        handler: HandlerFactory,
        key: Any = None,
        settings: Settings | None = None,
        namespace: str | None = None,
    ) -> None:
        self.inputs = _topics(name, input, inputs)
        self.name, self.input, self.handler = name, self.inputs[0], with_keys(handler, key)
        self._namespace = namespace
        self.settings = Settings() if settings is None else settings
        #: The newest log events.
        self.events = RecentEvents()
        #: URL of the ops server, which other instances return to their callers; set it before `start`.
        self.url = ""
        #: Group members, end offsets and committed states; None before `start`.
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
        """Replace the settings: `statehold run --config` loads them after the module has created the service."""
        if not isinstance(settings, Settings):
            raise UsageError(
                f"Service {self.name!r}: settings is a {type(settings).__name__}. Next: from statehold.config "
                'import load, and settings=load(overrides={"SECTION.KEY": "VALUE"}) or settings=load(Path("FILE.toml"))'
            )
        if self._namespace is not None:
            settings = replace(settings, service=replace(settings.service, namespace=self._namespace))
        self._settings = settings
        kind, names = class_of(self.handler), Names(self.name, self.input, settings.service.namespace, self.inputs[1:])
        self.names = with_rekeys(names, kind)
        key_types(kind, self.names)  # rejects types that are not supported
        #: Metrics for `/metrics`; `service.metrics.register()` exports them with those of an application, too.
        self.metrics = ServiceMetrics(self.names.group)
        self.metrics.ask(self._gauges)

    # Start and stop

    def run(self) -> None:
        """Start, block until SIGTERM, SIGINT or a failure, then stop.

        Call it on the main thread of a process of its own, because it sets signal handlers and the garbage collector's
        thresholds. Raises the errors of `start` and `wait`.
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
            self._stop_asked = True  # a signal from here on changes nothing
            self.stop()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def start(self) -> None:
        """Check topics and schemas, start the threads and return. Blocks for seconds; partitions go live later.

        :raises StartError: the brokers or a schema registry do not answer, or a topic or schema is missing or
            unsuitable. The text names the next command, and no thread is running.
        :raises UsageError: the service was started before, or the handler's declarations are not valid.
        """
        if self._thread is not None:
            raise UsageError(f"service {self.name!r} was already started. Next: create a new Service for another start")
        check_combinations(class_of(self.handler), self._settings.snapshot.delta_interval, self.inputs)
        check_storage(class_of(self.handler), self._settings)
        log = self._new_log()
        log.info(
            "starting",
            input=", ".join(self.inputs),
            brokers=self._settings.kafka.bootstrap_servers,
            version=__version__,
        )
        shutdown = self._shutdown = Shutdown(self._settings, log, self._stop_within, self._ended)
        contact = shutdown.contact
        admin = Admin(self._settings, self.names.group, contact)
        facts = self._require(admin, log)
        kind = class_of(self.handler)
        check_schemas(kind, value_types(kind, self.names), key_types(self.handler, self.names))
        self.overview = Overview(admin, self.names, facts[self.names.input].partitions)
        self.metrics.service.set(metrics.INPUT_PARTITIONS, self.overview.partitions)
        if (budget := self._settings.snapshot.restore_budget) != "off":
            self.metrics.service.set(metrics.RESTORE_BUDGET, budget)
        wiring = self._wiring = ServiceWiring(self, admin, facts, log, contact, self.overview, self._rights())
        read_group = partial(admin.describe_group, self.names.input)
        consumer = KafkaGroupConsumer(self._settings, self.names, log, contact, self._client_id(), read_group)
        self._manager = wiring.manager = Manager(
            consumer,
            wiring.worker,
            self._settings,
            self.metrics,
            log,
            time.monotonic,
            wiring.joining(),
            unassigned=wiring.unassigned(),
            asked=self._settings.commit.early and replies_of(class_of(self.handler)) is not None,
        )
        self._topic_monitor = TopicMonitor(
            self._settings, self.names, admin, facts, log, self._manager.fail, self._manager.status
        )
        thread = threading.Thread(target=self._run_manager, name=f"statehold-{self.name}", daemon=True)
        shutdown.start(thread)
        wiring.start(consumer)
        self._topic_monitor.start()
        self._thread = thread
        thread.start()  # last, because its end stops all the others

    def stop(self, timeout: float | None = None) -> None:
        """Commit processed records, write a full snapshot (`snapshot.on_stop`) and leave the group.

        Blocks up to `timeout` seconds, by default `service.stop_timeout`. The next owner processes uncommitted records
        again. You may call it more than once.
        """
        if self._thread is None or self._manager is None:
            return
        within = self._settings.service.stop_timeout if timeout is None else timeout
        self._manager.stop(within)
        if self._shutdown is not None:
            self._shutdown.await_end(within)

    def drain(self, timeout: float | None = None) -> None:
        """Stop; a static member also leaves the group, so that the other members get its partitions at once."""
        if self._manager is not None:
            self._manager.stop(self._settings.service.stop_timeout if timeout is None else timeout, leave=True)
        self.stop(timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the service has ended. Return False if `timeout` seconds passed first.

        :raises BaseException: the error that ended the service, unless `stop` did.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        # In steps, because a blocked main thread runs no signal handlers.
        while not self._ended.wait(_STEP if deadline is None else max(0.0, min(_STEP, deadline - time.monotonic()))):
            if deadline is not None and time.monotonic() >= deadline:
                return False
        failure = self._shutdown.why if self._shutdown is not None and self._shutdown.why else self._failure
        if failure is not None:
            raise failure
        return True

    def client(self, *, in_flight: int | None = None) -> Client:
        """Return a new `Client` of this service, with its settings and the types of its (first) input.

        `in_flight` is as for a `Client`; by default 10,000.
        """
        from statehold.client.client import IN_FLIGHT, Client
        from statehold.runtime.local_reads import LocalReads

        value = value_types(class_of(self.handler), self.names)[self.input]
        key = key_types(self.handler, self.names).get(self.input)
        most = IN_FLIGHT if in_flight is None else in_flight
        here = LocalReads(lambda: self.overview, self.names)
        return Client(self.name, self._settings, input=self.input, value=value, key=key, in_flight=most, here=here)

    def retry(self, partition: int | None = None) -> None:
        """Restart a failed partition, or all failed ones."""
        if self._manager is not None:
            self._manager.retry(partition)

    def status(self) -> dict[str, Any]:
        """Return the status that `statehold status` shows, with phase, position and failure of each partition here."""
        partitions = self._manager.status() if self._manager is not None else []
        if self.overview is not None:
            partitions = self.overview.with_ends(partitions)
        running = self._thread is not None and not self._ended.is_set()
        status = {
            "service": self.names.group,
            "input": self.input,
            "inputs": list(self.inputs),
            "instance": self._settings.service.identity,
            "url": self.url,
            "running": running,
            # Seconds since the manager's last turn; None before the first one.
            "turned": round(time.monotonic() - turned, 3) if (turned := self._turned()) is not None else None,
            "ready": running and all(partition["phase"] == "live" for partition in partitions),
            "partitions": partitions,
            # Standby replicas with their ages (docs/how-to/state/standby.md).
            "standbys": self._wiring.standbys.status() if self._wiring is not None and self._wiring.standbys else [],
            # Reference topics with their versions (docs/how-to/write/reference-data.md).
            "references": self._wiring.references.status() if self._wiring and self._wiring.references else [],
            # Why this process has no partition; None while it has some.
            "waiting": self._manager.waiting if self._manager is not None and running else None,
            # True if this member is idle: live members own every partition.
            "idle": running and self._manager is not None and self._manager.idle,
            # True after `start`.
            "begun": self._thread is not None,
            "stopping": self.stopping,
        }
        if self._topic_monitor is not None:
            self._topic_monitor.report(status)
        return self._shutdown.report(status, running) if self._shutdown is not None else status

    @property
    def stopping(self) -> bool:
        """True after `stop` or a stop signal."""
        return self._stop_asked or (self._manager is not None and self._manager.stopping)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _require(self, admin: Admin, log: Log) -> dict[str, TopicFacts]:
        """Return the facts of the topics. :raises StartError: a topic or ACL is missing, or a topic is unsuitable."""

        def cancelled() -> bool:
            return self._stop_asked

        with reaching(self._settings):
            try:
                facts = require(admin, self.names, output_topics(self.handler, self.names), cancelled, START_PATIENCE)
            except Misconfigured as error:
                if code_of(error) not in LOGIN:  # a rejected login gets no answer about ACLs
                    require_rights(self._settings, admin, self._rights(), log, cancelled)
                raise
            require_references(admin, reference_topics(self.handler), log)
        require_rights(self._settings, admin, self._rights(), log, cancelled)
        return facts

    def _rights(self) -> list[Right]:
        return rights_of_service(self.names, output_topics(self.handler, self.names), reference_topics(self.handler))

    def _new_log(self) -> Log:
        return Log(recent=self.events, service=self.names.group, instance=self._settings.service.identity)

    def _client_id(self) -> str:
        """Return the client id with the ops server's URL, so that other instances can redirect key lookups."""
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
        except BaseException as error:  # raised by wait(), so it sets the exit code (rule A6)
            log.error("thread_died", thread="manager", cause=class_and_text(error), exc_info=True)
            self._failure = of_thread(error)
        finally:
            assert self._wiring is not None
            self._wiring.close()
            if self._shutdown is not None:
                self._shutdown.close()
            if self._topic_monitor is not None:
                self._topic_monitor.close()
            thaw()
            log.info("stopped", cause=str(self._failure) if self._failure else None)  # the last event of a clean stop
            self._ended.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop_asked:
            return  # this signal may interrupt `stop` of the first one, and an event's lock is not reentrant
        self._stop_asked = True
        if self._manager is not None:
            self._manager.stop(self._settings.service.stop_timeout)


def check(service: Any, where: str) -> Service:
    """Return `service`. :raises UsageError: the object at `module:name` is not a Service."""
    if not isinstance(service, Service):
        raise UsageError(f"{where} is a {type(service).__name__}, not a statehold.Service")
    return service


def _topics(name: str, input: str, inputs: Sequence[str]) -> tuple[str, ...]:
    """Return the input topics. :raises UsageError:"""
    given: object = input
    if not isinstance(given, str) or isinstance(inputs, str):
        raise UsageError(f"Service {name!r}: input takes one topic and inputs a list. Next: Service(inputs=[...])")
    topics = tuple(inputs) or (input,)
    if bool(input) == bool(inputs):
        raise UsageError(f"Service {name!r}: give it either input=TOPIC or inputs=[TOPIC, ...]")
    if any(topic.startswith("^") for topic in topics):
        raise UsageError(
            f"Service {name!r}: {', '.join(topics)} has a pattern, but a service reads topics by their names. Next: "
            f"name each in Service(inputs=[...])"
        )
    if len(set(topics)) < len(topics) or len(topics) > MOST_INPUTS:
        raise UsageError(f"Service {name!r}: inputs names a topic twice, or more than {MOST_INPUTS} topics")
    return topics
