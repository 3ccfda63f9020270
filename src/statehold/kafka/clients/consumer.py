"""The service's consumer: a member of the group, used by the manager thread (pitfalls P14-P23)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from statehold.common.names import Names
from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble, Misconfigured
from statehold.health.connectivity import GROUP, NoContact
from statehold.health.group_check import GroupCheck
from statehold.kafka.clients.coordinator_watch import JOINING, HeartbeatWatch, JoinWatch, ask_coordinator
from statehold.kafka.clients.missed_assignment import MissedAssignment
from statehold.kafka.clients.static_member import StaticName, has_code, release_id
from statehold.kafka.common.broker_probe import probe_brokers
from statehold.kafka.common.call_timeout import STUCK_AFTER
from statehold.kafka.common.client_log import ClientLog
from statehold.kafka.common.closing import close_member, leave_group
from statehold.kafka.common.error_actions import describe, translate
from statehold.kafka.common.error_advice import REFUSES_MEMBER, login_rejected
from statehold.kafka.common.lost_brokers import BrokerMemory, known_brokers, section
from statehold.kafka.common.retry import OncePerMinute
from statehold.kafka.common.topic_identity import DEBUG, TopicIdentity
from statehold.ports import ConsumerGroup, ConsumerTrouble, InputTopic, Listener
from statehold.telemetry.log_events import Log

#: librdkafka's states of a member without a connection to its coordinator
_SEARCHING = ("query-coord", "wait-coord", "wait-broker", "wait-broker-transport")
#: _FATAL repeats an earlier fatal error, without the flag (seen with KIP-848)
_FATAL = (KafkaError.FENCED_INSTANCE_ID, KafkaError.UNRELEASED_INSTANCE_ID, KafkaError._FATAL)

#: seconds until a removed client is replaced, because the group needs time to change its protocol
_REPLACE_AFTER: Final = 1.0
#: seconds between two log events while it waits
_REPORT_EVERY: Final = 10.0


class Replacement(NamedTuple):
    """A new client joins at this time, in monotonic seconds. No call may reach a former one that is `gone`."""

    at: float
    #: it has no partitions any more; otherwise it was never admitted, because its static id is taken
    gone: bool = True


class KafkaGroupConsumer:
    """`ports.GroupConsumer` on librdkafka; `assign` and `unassign` are incremental under both group protocols."""

    def __init__(
        self,
        settings: Settings,
        names: Names,
        log: Log,
        contact: NoContact | None = None,
        client_id: str = "",
        read_group: Callable[[], ConsumerGroup] | None = None,
    ) -> None:
        """`read_group` describes the group with the members' partitions of the input; without it none is missed."""
        self._topic, self._log = names.input, log
        self._contact = contact or NoContact()
        self._settings, self._names = settings, names
        self._eager = settings.group.protocol == "classic" and settings.group.assignor == "range"
        self._taken = StaticName(settings, log)
        #: None while the client is a member, or becomes one
        self._replacement: Replacement | None = None
        self._owned: set[int] = set()
        self._renewing = threading.Event()
        self._report_at = 0.0
        self._memory = BrokerMemory(lambda: probe_brokers(settings))
        self._join = JoinWatch(lambda: ask_coordinator(settings, names.group), self._contact, time.monotonic)
        self._heartbeats = HeartbeatWatch(time.monotonic)
        #: None under the classic protocol, whose members ask for their assignment
        self._missed: MissedAssignment | None = None
        if read_group is not None and settings.group.protocol == "consumer":
            self._missed = MissedAssignment(GroupCheck(read_group, log, time.monotonic), log)
        self._refused_minute = OncePerMinute()
        self._listener: Listener | None = None
        # A poll runs the rebalance callbacks, and these drain partitions.
        self._poll_limit = settings.group.drain_seconds + STUCK_AFTER
        self._client_id = client_id
        # Under the protocol `consumer` a static member that leaves keeps its place anyway, until its session ends.
        self._stays = client.static_id(settings) != "" and settings.group.protocol == "classic"
        self._consumer = self._new_consumer()

    def _new_consumer(self) -> Consumer:
        """Make a client with the present passwords and certificates."""
        config: dict[str, Any] = dict(client.consumer(self._settings, self._names.group))
        identity = self._identity = TopicIdentity(self._topic)
        config["logger"] = ClientLog(lambda *line: self._logged(identity, *line))
        self._debugs = "debug" in config
        config |= {"debug": f"{config['debug']},{DEBUG}" if self._debugs else DEBUG, "log_level": 7}
        config["error_cb"] = self._error
        config["stats_cb"] = self._statistics
        if self._client_id:
            config["client.id"] = self._client_id
        return Consumer(config)

    def renew(self) -> None:
        """Hand the partitions over, then join with a client of the newest login. Any thread may call it."""
        self._renewing.set()

    def subscribe(self, listener: Listener) -> None:
        self._listener = listener
        self._consumer.subscribe(
            [self._topic],
            on_assign=self._callback(listener.on_assign),
            on_revoke=self._callback(listener.on_revoke),
            on_lost=self._callback(listener.on_lost),
        )

    def consume(self, records: int, timeout: float) -> tuple[Sequence[Message], Sequence[ConsumerTrouble]]:
        if self._memory.lost and self._replacement is None:
            self._without_brokers()
        if self._missed is not None and self._missed.found(self._owned, lambda: self.membership()[1]):
            self._renewing.set()
        if self._renewing.is_set():
            self._renewing.clear()
            if self._replacement is None:
                self._hand_over()
        if self._replacement is not None and not self._joins_again(self._replacement, timeout):
            return (), ()
        try:
            with self._contact.call("the consumer's poll", self._poll_limit):
                messages = self._consumer.consume(records, timeout)
        except KafkaException as error:
            raise translate(error) from error
        if not any(map(Message.error, messages)):
            return messages, ()
        errors = [error for error in map(Message.error, messages) if error is not None]
        self._check_place(errors)
        if self._replacement is not None:
            return (), ()
        return [m for m in messages if m.error() is None], [self._trouble(m) for m in messages if m.error() is not None]

    @property
    def input(self) -> InputTopic:
        return self._identity.topic

    def _check_place(self, errors: Sequence[KafkaError]) -> None:
        """Plan a replacement if the group has rejected this client.

        GROUP_ID_NOT_FOUND: the group uses the classic protocol and cannot change while its members are there, or it has
        gone back to the classic protocol while the session ended. The client stops for good, so its partitions are
        lost.
        """
        thrown = next((error for error in errors if has_code(error, KafkaError.GROUP_ID_NOT_FOUND)), None)
        if thrown is None:
            at = next(filter(None, map(self._taken.check, errors)), None)
            if at is not None:
                self._replacement = Replacement(at, gone=False)
            return
        if time.monotonic() >= self._report_at:
            self._report_at = time.monotonic() + _REPORT_EVERY
            self._log.warning(
                "waiting",
                cause="the group still uses the classic protocol, and its members' assignor prevents the change: this "
                f"process joins when the last of them has left ({describe(thrown)})",
            )
        self._lose_all(_REPLACE_AFTER)

    def _without_brokers(self) -> None:
        """Replace a client that does not find the live brokers again. Its partitions are lost."""
        self._log.warning("client_replaced", cause=f"it has forgotten brokers {sorted(self._memory.lost)} (issue 5301)")
        self._memory.forget()
        self._lose_all(0.0)

    def _hand_over(self) -> None:
        """Revoke every partition, so that processed records commit, and replace the client."""
        if self._listener is not None:
            self._listener.on_revoke(sorted(self._owned))
        self._replacement = Replacement(time.monotonic())

    def _lose_all(self, pause: float) -> None:
        self._replacement = Replacement(time.monotonic() + pause)
        if self._listener is not None:
            self._listener.on_lost(sorted(self._owned))

    def _joins_again(self, replacement: Replacement, timeout: float) -> bool:
        """Replace the client when its time has come. Return whether that has happened."""
        if time.monotonic() < replacement.at:
            time.sleep(timeout)
            return False
        # Replace it before it closes, so that its callbacks no longer count.
        former, self._consumer = self._consumer, self._new_consumer()
        closing = partial(close_member, former, stays=self._stays)  # the new client has its place
        threading.Thread(target=closing, name="consumer-close", daemon=True).start()
        self._replacement = None
        assert self._listener is not None
        self.subscribe(self._listener)
        return True

    def assign(self, partitions: Sequence[int]) -> None:
        # Assign offset 0 and pause at once, so that nothing is fetched before the seek after the restore (P17).
        self._taken.joined()
        self._owned.update(partitions)
        places = [TopicPartition(self._topic, p, 0) for p in partitions]
        if self._eager:
            self._consumer.assign(places)
        else:
            self._consumer.incremental_assign(places)
        self.pause(partitions)

    def unassign(self, partitions: Sequence[int]) -> None:
        self._owned.difference_update(partitions)
        if self._gone:
            return
        if self._eager:
            self._consumer.unassign()
        else:
            self._consumer.incremental_unassign(self._places(partitions))

    def pause(self, partitions: Sequence[int]) -> None:
        if partitions:
            self._consumer.pause(self._places(partitions))

    def resume(self, partitions: Sequence[int]) -> None:
        if partitions:
            self._consumer.resume(self._places(partitions))

    def seek(self, partition: int, offset: int) -> None:
        place = TopicPartition(self._topic, partition, offset)
        try:
            with self._contact.call("seek", STUCK_AFTER):
                self._consumer.seek(place)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE or self._eager or partition not in self._owned:
                raise translate(error) from error
            # A fetch began before the pause, at offset 0 of an input whose beginning is gone. Its fetcher has stopped,
            # and only a new assignment starts another.
            self._consumer.incremental_unassign([place])
            self._consumer.incremental_assign([place])

    def wake(self, positions: Mapping[int, int]) -> None:
        # librdkafka pauses every partition until a rebalance callback has run. Its broker thread then has nothing to
        # fetch, sleeps for up to a second, and does not notice the end of the pause. A seek wakes it.
        for partition, offset in positions.items():
            try:
                self._consumer.seek(TopicPartition(self._topic, partition, offset))
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:
                    raise translate(error) from error

    def membership(self) -> tuple[Any, str]:
        if self._gone:
            return None, ""
        with self._contact.call("consumer_group_metadata", STUCK_AFTER):
            return self._consumer.consumer_group_metadata(), self._consumer.memberid() or ""

    def rejoin(self) -> None:
        assert self._listener is not None
        try:
            with self._contact.call("the consumer's poll", self._poll_limit):
                leave_group(self._consumer)
        except KafkaException as error:
            raise translate(error) from error
        self.subscribe(self._listener)

    def close(self, timeout: float, *, leave: bool = False) -> bool:
        # Close on a thread of its own with a deadline, because close() can hang on a frozen coordinator (P21).
        closing = threading.Thread(target=self._end, args=(leave,), name="consumer-close", daemon=True)
        closing.start()
        closing.join(timeout)
        return not closing.is_alive()

    def _end(self, leave: bool) -> None:
        static = client.static_id(self._settings) != ""
        close_member(self._consumer, stays=self._stays and not leave)
        if static and leave and self._settings.group.protocol == "consumer":
            release_id(self._settings, self._names, self._log)

    @property
    def _gone(self) -> bool:
        return self._replacement is not None and self._replacement.gone

    def _callback(self, call: Callable[[Sequence[int]], None]) -> Callable[[Any, list[TopicPartition]], None]:
        def call_back(source: Any, places: list[TopicPartition]) -> None:
            if source is self._consumer:  # because a replaced client still calls back while it closes
                call([place.partition for place in places])

        return call_back

    def _places(self, partitions: Sequence[int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, partition) for partition in partitions]

    def _trouble(self, message: Message) -> ConsumerTrouble:
        error = message.error()
        assert error is not None
        if error.code() in REFUSES_MEMBER:
            raise Misconfigured(f"the group rejects this member: {describe(error)}")
        if error.fatal() or error.code() in _FATAL:
            raise KafkaTrouble(f"the consumer cannot continue: {describe(error)}")
        partition = message.partition()
        out_of_range = error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
        return ConsumerTrouble(
            partition if partition is not None else -1,
            KafkaTrouble(describe(error)),
            out_of_range=out_of_range,
            topic=self._topic,
        )

    def _statistics(self, text: str) -> None:
        """Check the group's coordinator once a second, because an idle member would not notice its loss."""
        group, brokers = section(text, "cgrp"), section(text, "brokers")
        state, joining = group.get("state", ""), group.get("join_state") in JOINING
        self._memory.saw(known_brokers(brokers), works=state == "up")
        self._join.saw(joining=state == "up" and joining)
        if self._missed is not None:
            self._missed.saw(brokers)
        silent = self._heartbeats.silent_since(brokers.get("GroupCoordinator", {}))
        if state == "up" and not joining and silent is not None:
            self._contact.broken(GROUP, "the group's coordinator does not answer a heartbeat", silent)
        elif state == "up" and not joining:
            self._contact.works(GROUP)
        elif state in _SEARCHING:
            self._contact.broken(GROUP, f"no connection to the group's coordinator ({state})")

    def _error(self, error: KafkaError) -> None:
        """Log a client error. Only a rejected login needs an operator, because brokers restart (P30)."""
        refused = login_rejected(error)
        if refused is not None and self._refused_minute():
            self._log.warning("login_rejected", cause=describe(refused))
        self._log.debug("kafka_log", client="consumer", level="error", message=describe(error))

    def _logged(self, identity: TopicIdentity, level: str, message: str) -> None:
        identity.logged(message)  # of this client, because a replaced one still logs while it closes
        if level != "debug" or self._debugs:
            self._log.debug("kafka_log", client="consumer", level=level, message=message)
