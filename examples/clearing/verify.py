"""Verify a clearing service against its input: `python -m examples.clearing.verify BOOTSTRAP_SERVERS`.

Nothing here comes from statehold or from the handler: a plain read_committed consumer reads input and outputs,
`oracle` computes the outputs a second time, `proof` compares them. An account's records lie in one partition.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from examples.clearing.oracle import Books, Event, book_all
from examples.proof import Findings, Held, compare_events, compare_state, digest
from examples.topics import by_key, read_committed


@dataclass(frozen=True)
class Verdict:
    """All findings of one verification, and how many partitions' digests were equal."""

    trades: int
    findings: tuple[Findings, ...]
    digests_equal: int
    digests: int

    @property
    def ok(self) -> bool:
        """True when trades were read and nothing differs."""
        equal = self.digests_equal == self.digests
        return self.trades > 0 and equal and all(finding.ok for finding in self.findings)

    @property
    def lost(self) -> int:
        """Number of missing events and keys."""
        return sum(finding.lost for finding in self.findings)

    @property
    def duplicated(self) -> int:
        """Number of duplicated events."""
        return sum(finding.duplicated for finding in self.findings)

    def lines(self) -> Iterator[str]:
        """The verdict as text: one line for each topic or table, then the first differences."""
        yield f"{self.trades:,} trades"
        yield from map(str, self.findings)
        yield f"digests: {self.digests_equal} of {self.digests} equal"
        yield from (finding.first for finding in self.findings if finding.first)


def verify(bootstrap_servers: str, held: Mapping[int, Held] | None = None) -> Verdict:
    """Read the topics, recompute and compare them, and the state `held` by partition if given."""
    trades = read_committed(bootstrap_servers, "trades")
    books = {p: book_all(record.value for record in records) for p, records in trades.items()}
    fills = by_key(read_committed(bootstrap_servers, "fills"))
    calls = by_key(read_committed(bootstrap_servers, "margin-calls"))
    findings = [
        compare_events("fills", _merged(book.fills for book in books.values()), fills),
        compare_events("margin-calls", _merged(book.margin_calls for book in books.values()), calls),
    ]
    if held is not None:
        findings += compare_state(_all_tables(books), _all_states(held))
    equal = sum(digest(tables(books[partition])) == each.digest for partition, each in (held or {}).items())
    return Verdict(sum(map(len, trades.values())), tuple(findings), equal, len(books) if held is not None else 0)


def tables(books: Books) -> dict[str, dict[str, Event]]:
    """Return the expected tables by the service's names."""
    return {"positions": books.positions, "accounts": books.accounts}


def _merged(parts: Iterator[dict[str, list[Event]]]) -> dict[str, list[Event]]:
    """Merge the partitions' expectations. Raises ValueError if two share an account, because it has no order then."""
    merged: dict[str, list[Event]] = {}
    for part in parts:
        if shared := merged.keys() & part.keys():
            raise ValueError(f"accounts in more than one partition of the input: {sorted(shared)[:3]}")
        merged.update(part)
    return merged


def _all_tables(books: Mapping[int, Books]) -> dict[str, dict[tuple[int, str], Event]]:
    """Merge tables by (partition, key), so that a key in a wrong partition is a difference."""
    merged: dict[str, dict[tuple[int, str], Event]] = {"positions": {}, "accounts": {}}
    for partition, book in books.items():
        for name, rows in tables(book).items():
            merged[name].update({(partition, key): row for key, row in rows.items()})
    return merged


def _all_states(held: Mapping[int, Held]) -> dict[str, dict[tuple[int, str], bytes]]:
    merged: dict[str, dict[tuple[int, str], bytes]] = {}
    for partition, each in held.items():
        for name, rows in each.state.items():
            merged.setdefault(name, {}).update({(partition, key): row for key, row in rows.items()})
    return merged


if __name__ == "__main__":
    verdict = verify(sys.argv[1])
    print("\n".join(verdict.lines()))
    sys.exit(0 if verdict.ok else 1)
