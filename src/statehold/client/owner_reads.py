"""Reads committed state over HTTP from the instance that owns its partition."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from statehold.client.receipt import Receipt
from statehold.common.decoding import UNREADABLE, make_decoder
from statehold.common.names import Names
from statehold.common.visible import visible_time
from statehold.config.settings import Settings
from statehold.errors import Fenced, KafkaTrouble, Lost, SinkFenced, StateUnavailable, UsageError
from statehold.kafka.admin.admin import Admin

T = TypeVar("T")

#: seconds for which an owner is believed to own a partition, unless it says otherwise
_KEPT: Final = 5.0
#: seconds between two tries, and between two questions to the group about the owner
_PAUSE: Final = 0.02
_ASK_AGAIN: Final = 0.3
#: most seconds between two tries that an owner may ask for with Retry-After
_LONGEST_PAUSE: Final = 1.0
#: seconds after which an instance without an answer hangs: one that reads keys, and one that lists a range. A read
#: looks for another owner then, and waits twice as long the next time
_HANGS: Final = 2.0
_LISTS: Final = 10.0
#: highest age of a standby replica in seconds that a query can ask for
_OLDEST: Final = 99_999.0
#: most unused connections to one owner
_MOST_IDLE: Final = 16
#: most types of values whose decoders are kept
_MOST_KINDS: Final = 256
#: most bytes of an answer
_LARGEST: Final = 64_000_000
#: characters of the cause of a failure
_CAUSE: Final = 2_000
#: errors of a partition that another process has by now, or soon: it has not failed
_MOVED: Final = frozenset(each.__name__ for each in (Fenced, SinkFenced, Lost))


class _RowAnswer(msgspec.Struct):
    """A row; `index` is the place of its key among those that were asked for."""

    key: msgspec.Raw
    value: msgspec.Raw
    index: int = -1


class _PartitionAnswer(msgspec.Struct):
    #: where a watch continues
    watch: str = ""


class RowsAnswer(msgspec.Struct):
    """The answer about a key, or about many. For a key that is absent, it has the partition that was searched."""

    value: msgspec.Raw = msgspec.Raw()
    partition: int | None = None
    error: str = ""
    rows: list[_RowAnswer] = []
    truncated: bool = False
    partitions: dict[str, _PartitionAnswer] = {}
    #: the partition has failed, or is paused before the record that was asked for: another try would not change that
    stopped: bool = False
    #: of a partition that is not live: "failed", "paused" and others
    phase: str = ""

    def has(self, partition: int) -> bool:
        """Return whether the answer has searched a partition, and is of a release that reads keys and ranges."""
        return (found := self.partitions.get(str(partition))) is not None and found.watch != ""

    @property
    def missing(self) -> str:
        """Return why an answer without an error does not have what was asked for."""
        if any(not each.watch for each in self.partitions.values()):
            return "the owner is of an older release, which does not read keys and ranges"
        return "the partition is not there"

    def position(self, partition: int) -> str:
        """Return where a watch of a partition continues."""
        return self.partitions[str(partition)].watch

    def decoded(self, kind: Any, data: msgspec.Raw) -> Any:
        """:raises StateUnavailable: the data is of another type."""
        return _decoded(kind, data, "what was read", "`key` and `value` the types of the table's keys and values")


class PartitionState(msgspec.Struct, kw_only=True):
    """What an owner's status says of a partition; see `statehold.worker.status.PartitionStatus`."""

    partition: int
    phase: str = ""
    #: class and text of the error of a failed partition, and the start of this phase in seconds since 1970
    error: str | None = None
    cause: str | None = None
    since: float = 0.0
    #: who paused it
    paused: str | None = None
    #: next offset of the input, as committed
    position: int | None = None

    @property
    def failed(self) -> bool:
        return self.phase == "failed" and self.error not in _MOVED

    @property
    def stopped(self) -> bool:
        """Whether it handles no record until an operator lets it."""
        return self.failed or bool(self.paused)

    @property
    def short_cause(self) -> str:
        return (self.cause or "")[:_CAUSE]

    def command(self, names: Names) -> str:
        """Return the command that lets it continue once the cause is fixed."""
        return command_to_continue(names, self.partition, failed=self.failed)

    @property
    def why(self) -> str:
        """Why it is stopped, for a text that has named the partition."""
        if not self.failed:
            return f"is paused by {self.paused}"
        since = visible_time(round(self.since * 1000))
        return f"has failed since {since}: {self.error or 'an error'}: {self.short_cause}"


class _Status(msgspec.Struct):
    service: str = ""
    partitions: list[PartitionState] = []


class _Owner(NamedTuple):
    url: str
    #: monotonic time at which the group was asked
    asked: float


_decode: Final = msgspec.json.Decoder(RowsAnswer).decode
_decode_status: Final = msgspec.json.Decoder(_Status).decode


def command_to_continue(names: Names, partition: int, *, failed: bool) -> str:
    """Return the command that lets a partition continue that has failed, or that is paused."""
    if failed:
        return f"statehold retry {partition} --name {names.service}"
    return f"statehold resume {names.options} --partitions {partition}"


class InputCount(Protocol):
    """How many partitions the input has, as this client has counted them."""

    @property
    def counted(self) -> int:
        """The number of partitions among which reads choose; 0: not counted yet."""
        ...

    def count_again(self) -> None: ...


class OwnerReads:
    """Any thread may use it. Reads share a few connections to each owner."""

    def __init__(self, settings: Settings, names: Names, admin: Callable[[], Admin], input: InputCount) -> None:
        self._settings, self._names, self._admin, self._input = settings, names, admin, input
        self._lock = threading.Lock()
        self._owners: dict[int, _Owner] = {}
        #: a thread asks the group, and when one did so last
        self._asking, self._asked = False, float("-inf")
        #: addresses of all members
        self._instances: tuple[str, ...] = ()
        #: partitions that the group had when it was asked last
        self._most = 0
        #: connections that no read uses, by host and port
        self._idle: dict[str, list[http.client.HTTPConnection]] = {}
        self._closed = False

    def get(
        self,
        table: str,
        key: Any,
        kind: Any,
        partition: int,
        after: Receipt | None,
        max_age: float,
        until: float,
        here: Callable[[], tuple[Any] | None],
    ) -> Any:
        """Return the value of a key as `kind`; None if it is absent. Blocks until this monotonic time at most.

        `here` looks into this process before each question to the owner. If the owner does not answer, a standby
        replica may, which is at most `max_age` seconds old.

        :raises StateUnavailable:
        """
        query = f"?partition={partition}&max_age={age_text(max_age)}" + (f"&after={after}" if after is not None else "")
        path, what = f"/state/{quote(table, safe='')}/{key_text(key)}{query}", f"{table}[{key!r}]"

        def accept(status: int, body: RowsAnswer, cause: str) -> tuple[Any]:
            return (_answer(status, body, kind, what, cause),)

        return self._ask(path, partition, what, _HANGS, max_age > 0, until, here, accept)[0]

    def rows(
        self,
        table: str,
        fields: Mapping[str, str],
        partition: int,
        after: int,
        max_age: float,
        until: float,
        here: Callable[[], T | None],
        accept: Callable[[RowsAnswer], T | None],
    ) -> T:
        """Return what `accept` makes of the rows that the owner of a partition lists for these fields of a query.

        If that is None, the owner does not know the fields, and is asked again.

        It blocks, and `max_age` counts, as in `get`; `after`: the offset of a record that they must include, or -1.

        :raises StateUnavailable:
        """
        chosen = {"partition": str(partition), "max_age": age_text(max_age)}
        chosen |= {"after": f"{partition}:{after}"} if after >= 0 else {}
        path = f"/state/{quote(table, safe='')}?{urlencode({**fields, **chosen}, safe=':')}"

        def listed(status: int, body: RowsAnswer, cause: str) -> T | None:
            if status != 200 or body.error:
                raise StateUnavailable(f"{table}, partition {partition}: {cause}")
            return accept(body) if body.has(partition) else None

        patience = _HANGS if "keys" in fields or max_age > 0 else _LISTS
        return self._ask(path, partition, table, patience, max_age > 0, until, here, listed)

    def _ask(
        self,
        path: str,
        partition: int,
        what: str,
        patience: float,
        replicas: bool,
        until: float,
        here: Callable[[], T | None],
        accept: Callable[[int, RowsAnswer, str], T | None],
    ) -> T:
        """Ask the owner until `accept` finds a result in its answer; None asks again.

        With `replicas` the other instances are asked after the owner in each turn.

        :raises StateUnavailable: no result in time; after a turn, if the partition has failed or is paused.
        """
        counted = self._input.counted
        began, cause, tried, answered = time.monotonic(), "the owner is not known yet", False, False
        while (found := here()) is None and time.monotonic() < until:  # so a read of this process needs no time
            owner, asked, pause = self._owner(partition, until), time.monotonic(), _ASK_AGAIN if replicas else _PAUSE
            self._require_count(what, counted)
            if not owner and not tried:
                cause = f"no member of {self._names.group} that owns partition {partition} advertises an address"
            stopped = ""
            for url in self._asked_for(owner, replicas):
                limit = min(until, time.monotonic() + patience)
                status, found, why, wait, stops = self._one_answer(url, path, limit, accept)
                if found is not None:
                    return found
                if url == owner:  # its cause says more than those of the others
                    if status < 500:
                        self._forget(partition)
                    if status or time.monotonic() < until or not answered:  # otherwise the answer before it says more
                        cause = why
                    tried, answered, pause, stopped = True, answered or status > 0, max(pause, wait), stops
            if stopped:
                command = command_to_continue(self._names, partition, failed=stopped == "failed")
                raise StateUnavailable(
                    f"{what}, partition {partition}: {cause}. Next: `{command}`, once the cause is fixed"
                )
            patience *= 2 if time.monotonic() - asked >= patience else 1
            # The pause counts from the question, because an owner that waited for the record may be asked at once.
            pause = max(_PAUSE, pause - (time.monotonic() - asked))
            time.sleep(max(0.0, min(pause, until - time.monotonic())))
        if found is not None:
            return found
        raise StateUnavailable(
            f"{what}, partition {partition}: not read within {time.monotonic() - began:.3g} s: {cause}. "
            f"Next: `statehold status --name {self._names.service}`; the owner needs ops.state = 'on', ops.token and "
            f"an ops.advertised that this machine reaches"
        )

    def _one_answer(
        self, url: str, path: str, until: float, accept: Callable[[int, RowsAnswer, str], T | None]
    ) -> tuple[int, T | None, str, float, str]:
        """Ask an instance once: its status, 0 without an answer; the result; the cause without one; the pause.

        The last value is the phase of a partition that the instance reports as stopped; '' of any other.
        """
        try:
            status, data, wait = self._request(url, path, until)
        except (OSError, http.client.HTTPException) as error:
            return 0, None, f"{url}: {type(error).__name__}: {error}", 0.0, ""
        body = _read(data)
        why = f"{url}: {status}: {body.error or body.missing}"
        found = accept(status, body, why) if status < 500 and status != 421 else None
        return status, found, why, wait, body.phase if body.stopped else ""

    def _asked_for(self, owner: str, replicas: bool) -> list[str]:
        """Return the instances to ask in one turn: the owner, then those that may have a standby replica."""
        others = [each for each in self._instances if each != owner] if replicas else []
        return [owner, *others] if owner else others

    def state_of(self, partition: int, until: float) -> PartitionState | None:
        """Return what the owner of a partition says about it; look once. None: no owner is known that says anything.

        Blocks for a question to the group, and for one to the owner until this monotonic time.
        """
        if not (url := self._owner(partition, until)):
            return None
        try:
            status, data, _ = self._request(url, "/status", until)
            found = _decode_status(data) if status == 200 else _Status()
        except (OSError, http.client.HTTPException):
            self._forget(partition)
            return None
        except UNREADABLE:
            return None
        # A loopback address of another machine means another process here.
        states = found.partitions if found.service == self._names.group else []
        return next((each for each in states if each.partition == partition), None)

    def _owner(self, partition: int, until: float) -> str:
        """Return the address of the owner's ops server; '' while it is unknown. Asks the group until this time.

        One thread asks at a time. The others take the last known owner, and so does this one for half of its time if
        Kafka is away: an instance that has lost the partition says so.
        """
        with self._lock:
            found, now = self._owners.get(partition), time.monotonic()
            if found is not None and now - found.asked < _KEPT:
                return found.url
            if self._asking or now - self._asked < _ASK_AGAIN:
                return found.url if found is not None else ""
            self._asking, self._asked = True, now
        try:
            return self._owner_now(partition, found, (until - now) / (1 if found is None else 2))
        finally:
            self._asking = False

    def _owner_now(self, partition: int, found: _Owner | None, seconds: float) -> str:
        """Ask the group. `found` is the last known owner."""
        try:
            members = self._admin().describe_group(self._names.input, max(0.05, seconds)).members
        except KafkaTrouble:  # the last known owner is asked on: without Kafka no partition moves
            with self._lock:
                if found is not None and self._owners.get(partition) is found:
                    self._owners[partition] = found._replace(asked=time.monotonic())
            return found.url if found is not None else ""
        asked = time.monotonic()
        owners = {each: _Owner(member.url, asked) for member in members if member.url for each in member.partitions}
        with self._lock:
            self._owners, self._most = owners, max(owners, default=-1) + 1
            self._instances = tuple(member.url for member in members if member.url)
        return owners[partition].url if partition in owners else ""

    def _require_count(self, what: str, counted: int) -> None:
        """:raises StateUnavailable: the partition was chosen among fewer than there are now."""
        if 0 < counted < self._most:
            self._input.count_again()
            raise StateUnavailable(
                f"{what}: {self._names.input} has at least {self._most} partitions now, and had {counted} when this "
                f"client counted them, so a key may be in another one. Nothing was read. Next: ask again; restart the "
                f"producers that have not counted again"
            )

    def _forget(self, partition: int) -> None:
        with self._lock:
            self._owners.pop(partition, None)

    def _request(self, url: str, path: str, until: float) -> tuple[int, bytes, float]:
        """Return status, body, and the seconds after which to ask again.

        Ask on a kept connection, if there is one; one that the server has closed meanwhile is opened again.

        :raises TimeoutError: no answer until this monotonic time.
        """
        parts = urlsplit(url)
        token = self._settings.ops.token.reveal()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        while True:
            connection, kept = self._connection(parts.scheme, parts.netloc)
            connection.timeout = max(0.01, until - time.monotonic())
            if connection.sock is not None:
                connection.sock.settimeout(connection.timeout)
            try:
                connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
                answer = connection.getresponse()
                data = answer.read(_LARGEST + 1)
                found = answer.status, data, _pause_of(answer.getheader("Retry-After", ""))
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if not kept or isinstance(error, TimeoutError):  # an owner that hangs does so on each connection
                    raise
                continue
            except BaseException:
                connection.close()
                raise
            with self._lock:
                idle = self._idle.setdefault(parts.netloc, [])
                if len(idle) < _MOST_IDLE and not self._closed and len(data) <= _LARGEST:
                    idle.append(connection)
                    return found
            connection.close()
            return found

    def _connection(self, scheme: str, place: str) -> tuple[http.client.HTTPConnection, bool]:
        """Return a connection, and whether it was kept."""
        with self._lock:
            if idle := self._idle.get(place):
                return idle.pop(), True
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        return kind(place), False

    def close(self) -> None:
        with self._lock:
            self._closed, idle = True, [each for of_place in self._idle.values() for each in of_place]
            self._idle.clear()
        for each in idle:
            each.close()


@lru_cache(_MOST_KINDS)
def _decoder(kind: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    return make_decoder(msgspec.json.Decoder, kind).decode


def key_text(key: Any) -> str:
    """Write a key as in a path of `/state`: text, bytes and numbers as they are, any other as JSON.

    :raises UsageError: no table has such a key.
    """
    if isinstance(key, str | bytes):
        return quote(key, safe="")
    if isinstance(key, int):
        return str(key)
    try:
        return quote(msgspec.json.encode(key), safe="")
    except (TypeError, ValueError) as error:
        raise UsageError(f"the key {key!r:.100} is no key of a table: {error}. Nothing was read") from error


def age_text(seconds: float) -> str:
    """Write the highest age of a standby replica as in a query; 0: the owner only."""
    return f"{min(seconds, _OLDEST):.2f}".rstrip("0").rstrip(".")


def _pause_of(text: str) -> float:
    """Return the seconds of a Retry-After, which any server may have written."""
    return min(float(text), _LONGEST_PAUSE) if text.isdecimal() and len(text) < 10 else _PAUSE


def _read(data: bytes) -> RowsAnswer:
    if len(data) > _LARGEST:
        return RowsAnswer(error=f"the answer has more than {_LARGEST} bytes. Next: ask for fewer rows")
    try:
        return _decode(data)
    except UNREADABLE as error:
        return RowsAnswer(error=f"the answer cannot be read: {error}")


def _answer(status: int, body: RowsAnswer, kind: Any, what: str, cause: str) -> Any:
    """Return the value in an answer that another try would not change; None if the key is absent.

    :raises StateUnavailable: the answer has no value, or one of another type.
    """
    if status == 404 and body.partition is not None:
        return None
    if status != 200 or body.error:
        raise StateUnavailable(f"{what}: {cause}")
    return _decoded(kind, body.value, f"{what}: the value", "`value` the type of the table's values")


def _decoded(kind: Any, data: msgspec.Raw, what: str, given: str) -> Any:
    """:raises StateUnavailable: the data, which is `what`, is of another type; `given` has to be as it says."""
    try:
        return _decoder(kind)(data)
    except UNREADABLE as error:
        raise StateUnavailable(f"{what} is no {kind!r:.100}: {error}. Next: give {given}") from error
