"""The service's consumer: a member of the group, owned by the manager thread (pitfalls P14-P23)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from statehold.common.names import Names
from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble, Misconfigured
from statehold.health.connectivity import GROUP, NoContact
from statehold.kafka.clients.static_member import StaticName, give_back, means, unsubscribe
from statehold.kafka.common.broker_probe import probe_brokers
from statehold.kafka.common.call_timeout import STUCK_AFTER
from statehold.kafka.common.error_actions import describe, translate
from statehold.kafka.common.error_advice import REFUSES_MEMBER, login_refused
from statehold.kafka.common.lost_brokers import BrokerMemory, known
from statehold.kafka.common.retry import OncePerMinute
from statehold.kafka.common.transaction_taint import client_logger
from statehold.ports import ConsumerTrouble, Listener
from statehold.telemetry.log_events import Log

#: what librdkafka calls the states of a member that has no connection to its coordinator
_SEARCHING = ("query-coord", "wait-coord", "wait-broker", "wait-broker-transport")
#: _FATAL stands for an error that the client has met before; its flag says that it is none (seen with KIP-848)
_FATAL = (KafkaError.FENCED_INSTANCE_ID, KafkaError.UNRELEASED_INSTANCE_ID, KafkaError._FATAL)


#: seconds until a client that was thrown out is replaced
_AGAIN = 1.0
_TELL_EVERY = 10.0


class KafkaGroupConsumer:
    """`ports.GroupConsumer` on librdkafka; `assign` and `unassign` are incremental under both group protocols."""

    def __init__(
        self, settings: Settings, names: Names, log: Log, contact: NoContact | None = None, client_id: str = ""
    ) -> None:
        self._topic, self._log = names.input, log
        self._contact = contact or NoContact()
        # A poll runs the rebalance callbacks, and with them the drains.
        self._settings, self._names = settings, names
        self._eager = settings.group.protocol == "classic" and settings.group.assignor == "range"
        self._taken = StaticName(settings, log)
        #: when a static member asks for its name again
        self._again_at: float | None = None
        #: what is assigned; and whether the client is dead, so that a new one has to join
        self._owned: set[int] = set()
        self._dead = False
        self._renewing = threading.Event()
        self._tell_at = 0.0
        self._memory = BrokerMemory(lambda: probe_brokers(settings))
        self._refused_minute = OncePerMinute()
        self._listener: Listener | None = None
        self._poll_limit = settings.group.drain_seconds + STUCK_AFTER
        self._client_id = client_id
        self._consumer = self._new_consumer()

    def _new_consumer(self) -> Consumer:
        """With the passwords and certificates of now."""
        config: dict[str, Any] = dict(client.consumer(self._settings, self._names.group))
        config["logger"] = client_logger("statehold.consumer", self._logged)
        config["error_cb"] = self._error
        config["stats_cb"] = self._statistics
        if self._client_id:
            config["client.id"] = self._client_id
        return Consumer(config)

    def renew(self) -> None:
        """Any thread: join again soon with a client of the newest login; what is here is handed over before."""
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
        if self._memory.lost and self._again_at is None:
            self._again_at = self._without_brokers()
        if self._renewing.is_set():
            self._renewing.clear()
            self._again_at = self._again_at or self._handed_over()
        if self._again_at is not None and not self._joins_again(timeout):
            return (), ()
        try:
            with self._contact.call("the consumer's poll", self._poll_limit):
                messages = self._consumer.consume(records, timeout)
        except KafkaException as error:
            raise translate(error) from error
        if not any(map(Message.error, messages)):
            return messages, ()
        errors = [error for error in map(Message.error, messages) if error is not None]
        self._again_at = self._thrown_out(errors) or next(filter(None, map(self._taken.check, errors)), None)
        if self._again_at is not None:
            return (), ()
        return [m for m in messages if m.error() is None], [self._trouble(m) for m in messages if m.error() is not None]

    def _thrown_out(self, errors: Sequence[KafkaError]) -> float | None:
        """GROUP_ID_NOT_FOUND: the group is a classic one, and cannot change as long as its members are there (or it has
        gone back to the classic protocol while our session ended). The client gives up for ever. What was here is lost,
        and a new client joins; when (monotonic seconds), or None.
        """
        thrown = next((error for error in errors if means(error, KafkaError.GROUP_ID_NOT_FOUND)), None)
        if thrown is None:
            return None
        if time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + _TELL_EVERY
            self._log.warning(
                "waiting",
                cause="the group is still a classic one, and its members' assignor does not let it change: this "
                f"process joins when the last of them has left ({describe(thrown)})",
            )
        return self._begin_anew(_AGAIN)

    def _without_brokers(self) -> float:
        """The client does not know the brokers that live, and never will: a new one joins; what was here is lost."""
        self._log.warning("client_replaced", cause=f"it has forgotten brokers {sorted(self._memory.lost)} (issue 5301)")
        self._memory.anew()
        return self._begin_anew(0.0)

    def _handed_over(self) -> float:
        """As when the group takes everything away: what is processed commits, and nothing is done twice."""
        if self._listener is not None:
            self._listener.on_revoke(sorted(self._owned))
        self._dead = True
        return time.monotonic()

    def _begin_anew(self, pause: float) -> float:
        self._dead = True
        if self._listener is not None:
            self._listener.on_lost(sorted(self._owned))
        return time.monotonic() + pause

    def _joins_again(self, timeout: float) -> bool:
        """A consumer that was refused its name is dead; a new one asks once more."""
        assert self._again_at is not None
        if time.monotonic() < self._again_at:
            time.sleep(timeout)
            return False
        # It is replaced before it closes: what it says of its partitions meanwhile counts no more.
        former, self._consumer = self._consumer, self._new_consumer()
        threading.Thread(target=former.close, name="consumer-close", daemon=True).start()
        self._again_at, self._dead = None, False
        assert self._listener is not None
        self.subscribe(self._listener)
        return True

    def assign(self, partitions: Sequence[int]) -> None:
        # Offset 0 and a pause at once: nothing is fetched before the seek that follows the restore (P17).
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
        if self._dead:
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
            if error.args[0].code() != KafkaError._STATE or self._eager:
                raise translate(error) from error
            # A fetch slipped out before the pause, from offset 0 of an input whose beginning is gone: the fetcher has
            # given up, and only a new one goes on.
            self._consumer.incremental_unassign([place])
            self._consumer.incremental_assign([place])

    def wake(self, positions: Mapping[int, int]) -> None:
        # librdkafka pauses every partition until a rebalance callback has run. Its thread for the broker, with nothing
        # to fetch meanwhile, sleeps for up to a second, and nobody tells it of the end of the pause. A seek does.
        for partition, offset in positions.items():
            try:
                self._consumer.seek(TopicPartition(self._topic, partition, offset))
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:
                    raise translate(error) from error

    def membership(self) -> tuple[Any, str]:
        if self._dead:
            return None, ""
        with self._contact.call("consumer_group_metadata", STUCK_AFTER):
            return self._consumer.consumer_group_metadata(), self._consumer.memberid() or ""

    def close(self, timeout: float, *, leave: bool = False) -> bool:
        # close() can hang on a frozen coordinator (P21): it gets a thread of its own and a deadline.
        closing = threading.Thread(target=self._end, args=(leave,), name="consumer-close", daemon=True)
        closing.start()
        closing.join(timeout)
        return not closing.is_alive()

    def _end(self, leave: bool) -> None:
        static = leave and client.static_id(self._settings) != ""
        if static:
            unsubscribe(self._consumer)
        self._consumer.close()
        if static and self._settings.group.protocol == "consumer":
            give_back(self._settings, self._names, self._log)

    def _callback(self, call: Callable[[Sequence[int]], None]) -> Callable[[Any, list[TopicPartition]], None]:
        def told(source: Any, places: list[TopicPartition]) -> None:
            if source is self._consumer:  # one that was replaced has nothing to say while it closes
                call([place.partition for place in places])

        return told

    def _places(self, partitions: Sequence[int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, partition) for partition in partitions]

    def _trouble(self, message: Message) -> ConsumerTrouble:
        error = message.error()
        assert error is not None
        if error.code() in REFUSES_MEMBER:
            raise Misconfigured(f"the group does not take this member: {describe(error)}")
        if error.fatal() or error.code() in _FATAL:
            raise KafkaTrouble(f"the consumer cannot go on: {describe(error)}")
        partition = message.partition()
        out_of_range = error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
        return ConsumerTrouble(
            partition if partition is not None else -1,
            KafkaTrouble(describe(error)),
            out_of_range=out_of_range,
            topic=self._topic,
        )

    def _statistics(self, text: str) -> None:
        """Once a second: is the group's coordinator there? An idle member would not notice otherwise."""
        told = json.loads(text)
        state = told.get("cgrp", {}).get("state", "")
        self._memory.saw(known(told), works=state == "up")
        if state == "up":
            self._contact.works(GROUP)
        elif state in _SEARCHING:
            self._contact.broken(GROUP, f"no connection to the group's coordinator ({state})")

    def _error(self, error: KafkaError) -> None:
        """Information only: brokers come and go (P30). A login that is refused somebody has to mend."""
        refused = login_refused(error)
        if refused is not None and self._refused_minute():
            self._log.warning("login_refused", cause=describe(refused))
        self._log.debug("kafka_log", client="consumer", level="error", message=describe(error))

    def _logged(self, level: str, message: str) -> None:
        self._log.debug("kafka_log", client="consumer", level=level, message=message)
