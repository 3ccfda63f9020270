"""Verify a clearing service against its input: `python -m examples.clearing.verify BOOTSTRAP_SERVERS`.

Nothing here comes from holdfast or from the handler: a plain read_committed consumer reads input and outputs,
`oracle` computes the outputs a second time, `proof` compares them. An account's records lie in one partition.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from examples.clearing.oracle import Books, expected
from examples.proof import Findings, State, by_key, compare_events, compare_state, read_committed


@dataclass(frozen=True)
class Verdict:
    """All findings of one verification: `trades` read, one Findings for each output topic and each table."""

    trades: int
    findings: tuple[Findings, ...]

    @property
    def ok(self) -> bool:
        """True when trades were read and nothing differs."""
        return self.trades > 0 and all(finding.ok for finding in self.findings)

    @property
    def lost(self) -> int:
        """Events and keys that should be there and are not."""
        return sum(finding.lost for finding in self.findings)

    @property
    def duplicated(self) -> int:
        """Events that are there more than once."""
        return sum(finding.duplicated for finding in self.findings)


def verify(bootstrap_servers: str, state: State | None = None) -> Verdict:
    """Read the topics, recompute, compare; `state`, encoded values by table and key, too if given."""
    trades = read_committed(bootstrap_servers, "trades")
    books = expected([record.value for record in partition] for partition in trades.values())
    fills = by_key(read_committed(bootstrap_servers, "fills"))
    calls = by_key(read_committed(bootstrap_servers, "margin-calls"))
    findings = [
        compare_events("fills", books.fills, fills),
        compare_events("margin-calls", books.margin_calls, calls),
    ]
    if state is not None:
        findings += compare_state(tables(books), state)
    return Verdict(sum(map(len, trades.values())), tuple(findings))


def tables(books: Books) -> dict[str, dict[str, object]]:
    """The expected tables, named as the service names them."""
    return {"positions": dict(books.positions), "accounts": dict(books.accounts)}


def lines(verdict: Verdict) -> Iterable[str]:
    """The verdict as text, one line for each topic or table, then the first differences."""
    yield f"{verdict.trades:,} trades"
    for finding in verdict.findings:
        yield (
            f"{finding.name}: {finding.seen:,} of {finding.expected:,}, {finding.lost} lost, "
            f"{finding.duplicated} duplicated, {finding.foreign} foreign, "
            f"{finding.reordered} keys reordered, {finding.different} different"
        )
    yield from (finding.first for finding in verdict.findings if finding.first)


if __name__ == "__main__":
    found = verify(sys.argv[1])
    print("\n".join(lines(found)))
    sys.exit(0 if found.ok else 1)
