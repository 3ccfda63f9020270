"""Several processes of a service in virtual time, for tests that kill, suspend, stop and start them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from statehold.api.handler import Handler, HandlerFactory
from statehold.api.output import Headers
from statehold.api.values import serde
from statehold.bound.attributes import tables_and_outputs
from statehold.bound.inputs import plain_inputs, value_types
from statehold.bound.topics import class_of
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import UsageError
from statehold.testing.memory.keys import key_encoders
from statehold.testing.simulation.process import ProcessLife
from statehold.testing.simulation.schedule import Intervention, Schedule
from statehold.testing.simulation.shrink import lines_of
from statehold.testing.simulation.simulation import InputRecord, Scenario, Simulation


def quick_settings(settings: Settings | None = None) -> Settings:
    """Return settings with short time-outs, so that a takeover takes few seconds of virtual time."""
    base = settings or Settings()
    return replace(
        base,
        kafka=replace(base.kafka, socket_timeout=1.0, connection_timeout=1.0),
        group=replace(base.group, session_timeout=6.0),
        restore=replace(base.restore, memory_limit="off", deadline=20.0, hanging_after=15.0),
        commit=replace(base.commit, interval=0.3, timeout=4.0, transaction_timeout=10.0, slow=1.0),
        flow=replace(base.flow, poll_timeout=0.1),
        effects=replace(base.effects, max_backoff=1.0),
        timers=replace(base.timers, idle=1.0),
    )


def topics_of(handler: HandlerFactory, input: str = "input") -> tuple[str, ...]:
    """Return the inputs of a handler: those that `on` names, or the one of this name."""
    kind = class_of(handler)
    return tuple(plain_inputs(kind)) or (input,)


def encoders(kind: type[Handler[Any]], names: Names) -> dict[str, Callable[[Any], bytes]]:
    """Return the function that encodes the values of each input."""
    return {topic: serde.for_messages(value, topic).encode for topic, value in value_types(kind, names).items()}


class SimulatedCluster:
    """Runs processes `a`, `b`, ... of one service over a simulated Kafka. Time passes only in `run` and `advance`.

        with SimulatedCluster(Clearing, processes=3, partitions=6) as cluster:
            cluster.feed(Trade(...), key="ann", partition=2)
            cluster.run()                      # until everything is committed
            cluster.halt("a", 20.0)            # SIGSTOP: the others take over, and `a` wakes up as a zombie
            cluster.kill("b")
            cluster.run()
            assert cluster.outputs("fills") == [...]

    The manager, workers, commits, restores and snapshots are those of the service. Equal arguments and calls give equal
    results. It belongs to one thread.

    :param input: the name of the input; a handler with `on` names its inputs.
    :param settings: default: short time-outs (`quick_settings`).
    :param seed: varies the delays of all requests and threads.
    """

    def __init__(
        self,
        handler: HandlerFactory,
        *,
        processes: int = 2,
        partitions: int = 1,
        input: str = "input",
        settings: Settings | None = None,
        seed: int = 0,
    ) -> None:
        chosen = settings or quick_settings()
        topics = topics_of(handler, input)
        scenario = Scenario(handler, (), chosen, partitions, processes, topics)
        self._simulation = Simulation(scenario, Schedule.listed({}, seed))
        self._kind = self._simulation.application.kind
        self._encoders = encoders(self._kind, self._simulation.names)
        self._key_encoders = key_encoders(handler, self._simulation.names)
        self._simulation.begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes at once."""
        self._simulation.close()

    # Time

    def run(self) -> None:
        """Let time pass until every record is committed and every partition is live.

        :raises AssertionError: a partition failed, or something was committed that must not be.
        :raises Stalled: that does not come within 400 s of virtual time.
        """
        self._simulation.settle()

    def advance(self, seconds: float) -> None:
        """Let this much virtual time pass."""
        self._simulation.advance(seconds)

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self._simulation.clock()

    # Input and output

    def feed(
        self,
        value: Any,
        key: Any = None,
        partition: int = 0,
        *,
        input: str = "",
        headers: Headers | None = None,
    ) -> None:
        """Write a record to an input now: by default to the first one. What is not bytes is encoded as its type.

        :raises UsageError: no such input.
        """
        topic = input or next(iter(self._encoders))
        if topic not in self._encoders:
            raise UsageError(f"no input {topic!r}; there are: {', '.join(self._encoders)}")
        data = value if value is None or isinstance(value, bytes) else self._encoders[topic](value)
        blob = self._key_encoders[topic](key)
        self._simulation.feed(InputRecord(self.now, partition, data, blob, topic, headers=headers))

    def outputs(self, topic: str) -> list[Any]:
        """Return the committed values of an output (by topic or attribute name), partition by partition."""
        for name, output in tables_and_outputs(self._kind)[1].items():
            if topic in (name, output.topic):
                decode: Callable[[Any], Any] = serde.for_messages(output.value_type, output.topic).decode
                logs = self._simulation.kafka.topics[output.topic].logs
                return [decode(message.value()) for log in logs for message in log.committed()]
        raise UsageError(f"no output {topic!r} in {self._kind.__name__}")

    # Processes

    @property
    def assignment(self) -> dict[str, list[int]]:
        """The partitions that each running process believes to own."""
        found = self._simulation.processes.items()
        return {name: sorted(life.manager.assigned) for name, life in found if life.running}

    def start(self, name: str, handler: HandlerFactory | None = None) -> None:
        """Start a process: a new one, or one that was killed or stopped.

        With a `handler` it runs that release of the service from now on, next to processes of the first one. It reads
        the same inputs, and its outputs are among those of the first release.

        :raises UsageError: the process runs, or the release reads other inputs or has other outputs.
        """
        found = self._simulation.processes.get(name)
        if found is not None and found.running:
            raise UsageError(f"process {name!r} runs")
        if handler is not None:
            release = self._simulation.application.release(handler)
            encoders(release.kind, self._simulation.names)
            if new := set(release.all_outputs) - set(self._simulation.application.all_outputs):
                raise UsageError(f"{release.kind.__name__} sends to {', '.join(sorted(new))}, which was not created")
            self._simulation.releases[name] = release
        self._simulation.add(name)

    def kill(self, name: str) -> None:
        """Do SIGKILL. The group notices when the session ends."""
        self._simulation.act(self._life(name), Intervention("kill"))
        self._simulation.remove(name)

    def halt(self, name: str, seconds: float) -> None:
        """Do SIGSTOP, and SIGCONT after this much virtual time."""
        self._simulation.act(self._life(name), Intervention("halt", str(seconds)))

    def cut(self, name: str, seconds: float) -> None:
        """Cut the process off from the brokers for this much virtual time."""
        self._simulation.act(self._life(name), Intervention("cut", str(seconds)))

    def stop(self, name: str) -> None:
        """Do SIGTERM: the process commits, takes full snapshots and leaves the group while time passes."""
        self._life(name).manager.stop(self._simulation.scenario.settings.service.stop_timeout)
        self._simulation.remove(name)

    @property
    def timeline(self) -> str:
        """What happened, as lines: virtual time in seconds, who, what."""
        return "\n".join(lines_of(self._simulation.observer.timeline))

    def _life(self, name: str) -> ProcessLife:
        found = self._simulation.processes.get(name)
        if found is None or not found.running:
            raise UsageError(f"no process {name!r} runs; there are: {', '.join(self.assignment) or 'none'}")
        return found
