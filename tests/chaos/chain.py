"""Walks what statehold left on its topics: the chain of marks, each digest, the state that a new owner would load.

Shares no code with statehold. One object checks one partition; `findings` says what is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.chaos.failing import Accounts, stored
from tests.chaos.rows import Row
from tests.chaos.workload import EVERYTHING, Sent, Trade, linked
from tests.support import frames

#: table and key
Place = tuple[str, str]


class StateAt:
    """The state of a partition after so much of its input, going forward only.

    `late` are trades that the input's order does not place, with the transactions that handled them.
    """

    def __init__(
        self, inputs: Sequence[Sent], late: Sequence[tuple[int, Trade]] = (), *, several: bool = False
    ) -> None:
        """`several`: the service reads two inputs, and `inputs` are the records of both in the order of handling."""
        self._inputs, self._next, self._several = inputs, 0, several
        self._links: dict[str, int] = {}
        self._late, self._next_late = late, 0
        self._accounts = Accounts()
        self._totals: dict[str, tuple[int, int]] = {}
        self._stored: dict[Place, bytes] = {}
        self._hashes: dict[Place, int] = {}
        self._sum = 0

    def digest(self, position: int, n: int = 1 << 62) -> bytes:
        """16 bytes, as in a mark; of transaction `n` where something was late."""
        while self._next < len(self._inputs) and self._inputs[self._next].offset < position:
            sent = self._inputs[self._next]
            self._next += 1
            trade = sent.trade
            fate = self._accounts.fate(trade.account, trade.symbol, sent.offset)
            if fate.handled and not fate.late:
                self._book(trade)
            elif trade.account in self._accounts.waiting and fate.why:
                self._put((frames.BLOCKED_KEYS, trade.account), stored(self._accounts.waiting[trade.account]))
        while self._next_late < len(self._late) and self._late[self._next_late][0] <= n:
            self._book(self._late[self._next_late][1])
            self._next_late += 1
        return (self._sum % frames.MODULUS).to_bytes(16, "little")

    def stored(self, position: int, n: int = 1 << 62) -> dict[Place, bytes]:
        """Table and key -> stored value."""
        self.digest(position, n)
        return self._stored

    def _book(self, trade: Trade) -> None:
        for account in (trade.account, EVERYTHING) if self._several else (trade.account,):
            total, count = self._totals.get(account, (0, 0))
            self._totals[account] = total, count = total + trade.amount, count + 1
            link = self._links[account] = linked(self._links.get(account, 1), trade)
            self._put((frames.ACCOUNTS, account), frames.stored(total, count, link if self._several else None))

    def _put(self, place: Place, value: bytes) -> None:
        table, key = place
        new = frames.key_hash(key, value, table)
        self._sum += new - self._hashes.get(place, 0)
        self._hashes[place], self._stored[place] = new, value


class Chain:
    """The changelog of one partition, its snapshot topic partition, its input."""

    def __init__(
        self, partition: int, topics: Sequence[str], inputs: Sequence[Sent], late: Sequence[tuple[int, Trade]] = ()
    ) -> None:
        """`inputs`: records in the order of handling; with several topics their offsets are places."""
        self.partition, self._topics, self._inputs, self._late = partition, topics, inputs, late
        self.findings: list[str] = []
        self.commit_records: list[dict[str, Any]] = []
        self.attempts: list[str] = []
        self._deltas: dict[int, list[Any]] = {}

    def walk(self, rows: Sequence[Row]) -> None:
        """Check that each transaction is whole and follows the one before it."""
        open_: list[tuple[str, Any]] = []
        for row in rows:
            try:
                kind, body = frames.unframe(row.value)
            except (ValueError, IndexError) as error:
                self._wrong(f"offset {row.offset}: {error}")
                continue
            if kind == "H" and open_ and self.commit_records:
                self._wrong(f"torn commit: transaction {open_[0][1]} begins and has no mark (offset {row.offset})")
                open_ = []
            if kind != "M":
                open_.append((kind, body))
                continue
            self._commit_record(body, open_, row.offset)
            open_ = []
        if open_:
            self._wrong(f"torn commit: the topic ends within transaction {open_[0][1][:2]}")
        if not self.commit_records:
            self._wrong("no mark at all")

    def _commit_record(self, commit_record: dict[str, Any], records: Sequence[tuple[str, Any]], offset: int) -> None:
        n, attempt = commit_record["n"], commit_record["attempt"]
        parts = [body for kind, body in records if kind == "P"]
        if self.commit_records:
            before = self.commit_records[-1]
            heads = [body for kind, body in records if kind == "H"]
            if len(heads) != 1 or heads[0][:2] != [n, attempt]:
                self._wrong(f"torn abort: mark {n} at {offset} has no header of its own")
            if n != before["n"] + 1 or commit_record["start"] != self.position(before):
                self._wrong(
                    f"mark {n} from {commit_record['start']} follows mark {before['n']} that ended at "
                    f"{self.position(before)}"
                )
            if [part[:3] for part in parts] != [[n, attempt, k] for k in range(commit_record.get("parts", 0))]:
                self._wrong(f"mark {n} has parts {[part[:3] for part in parts]}, not {commit_record.get('parts', 0)}")
        if not self.attempts or self.attempts[-1] != attempt:
            if attempt in self.attempts:
                self._wrong(f"two owners at once: attempt {attempt} comes back at mark {n}")
            self.attempts.append(attempt)
        self.commit_records.append(commit_record)
        self._deltas[n] = [entry for part in parts for entry in part[3]]

    def position(self, commit_record: dict[str, Any]) -> int:
        return self._sum(commit_record["positions"])

    def _sum(self, positions: dict[str, int]) -> int:
        return sum(positions[topic] for topic in self._topics)

    def _state(self) -> StateAt:
        return StateAt(self._inputs, self._late, several=len(self._topics) > 1)

    def check_digests(self) -> int:
        """Every mark's digest against the input; how many were compared."""
        state = self._state()
        for commit_record in self.commit_records:
            if state.digest(self.position(commit_record), commit_record["n"]) != commit_record["digest"]:
                self._wrong(
                    f"mark {commit_record['n']}: the digest is not that of the input up to "
                    f"{self.position(commit_record)}"
                )
                break
        return len(self.commit_records)

    def check_outputs(self, origins: Sequence[tuple[int, int]]) -> None:
        """Each transaction's outputs, all of them and once; `origins` are (n, ordinal) of what a reader sees."""
        seen = Counter(origins)
        count = Counter(n for n, _ in seen)
        for (n, ordinal), times in seen.items():
            if times > 1:
                self._wrong(f"output {ordinal} of transaction {n} is there {times} times")
        for commit_record in self.commit_records[1:]:
            n, expected = commit_record["n"], commit_record.get("outputs", 0)
            if count[n] != expected:
                self._wrong(f"transaction {n}: {count[n]} outputs, its mark says {expected}")
        beyond = [n for n in count if self.commit_records and n > self.commit_records[-1]["n"]]
        if beyond:
            self._wrong(f"outputs of transactions {sorted(beyond)} are visible, their marks are not")

    def check_state(self, full_snapshots: Sequence[Row]) -> None:
        """What a new owner would load: the newest full that the last mark names, and the deltas after it."""
        if not self.commit_records:
            return
        last = self.commit_records[-1]
        base = self._base(last, full_snapshots)
        if base is None:
            return
        held, first, reached, position = base
        for n in sorted(self._deltas):
            if n > first and self._deltas[n]:
                self._apply(held, n)
                reached = max(reached, n)
        commit_records = {commit_record["n"]: self.position(commit_record) for commit_record in self.commit_records}
        # Without a change there is no delta: the state of `last_delta` is that of every mark up to the next one.
        n = max(reached, last.get("last_delta", 0))
        at = commit_records.get(n, position)
        if held != self._state().stored(at, n if n in commit_records else first):
            self._wrong(f"the state that would be restored is not that of the input up to {at}")

    def _base(
        self, last: dict[str, Any], full_snapshots: Sequence[Row]
    ) -> tuple[dict[Place, bytes], int, int, int] | None:
        for low, offset, first, through, _ in last.get("fulls", []):
            if first != through and last.get("last_delta", 0) < through:
                continue
            records = [frames.unframe(row.value) for row in full_snapshots if low <= row.offset <= offset]
            manifest = records[-1][1] if records and records[-1][0] == "F" else None
            chunks = [body for kind, body in records if kind == "C" and manifest and body[0] == manifest["full"]]
            if manifest is None or len(chunks) != len(manifest["checksums"]):
                self._wrong(f"the full at {offset} that mark {last['n']} names is not whole")
                continue
            held: dict[Place, bytes] = {}
            for chunk in chunks:
                table, keys, values = chunk[3]
                held.update(zip(((table, _text(key)) for key in keys), values, strict=True))
            return held, first, through, self._sum(manifest["positions"])
        if self.commit_records[0]["n"] > 1:
            self._wrong("the changelog before the first full snapshot is gone")
            return None
        return {}, 0, 0, self.position(self.commit_records[0])

    def _apply(self, held: dict[Place, bytes], n: int) -> None:
        for table, keys, values in self._deltas[n]:
            for key, value in zip(keys, values, strict=True):
                if value is None:
                    held.pop((table, _text(key)), None)
                else:
                    held[table, _text(key)] = value

    def _wrong(self, text: str) -> None:
        self.findings.append(f"partition {self.partition}: {text}")


def _text(key: str | bytes) -> str:
    """A system table has bytes for keys."""
    return key if isinstance(key, str) else key.decode()
