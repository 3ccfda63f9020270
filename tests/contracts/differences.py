"""Where the simulated Kafka, or a version of the real one, breaks a contract; each with its reason."""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    """One contract that does not hold in some worlds."""

    #: name of the test function; "" for every one
    contract: str
    #: a part of the parameters' ids, such as "3.9.1" or "simulated"; all must occur
    where: tuple[str, ...]
    reason: str
    #: False where the contract would only wait for what never comes
    runs: bool = True

    def matches(self, function: str, name: str) -> bool:
        return self.contract in ("", function) and all(part in name for part in self.where)


_PREVIEW = "3.9 has the consumer protocol as a preview only: a member never gets a partition"


DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "test_offsets_of_an_earlier_generation_or_member_epoch_are_rejected_as_stale",
        ("4.4.0", "consumer-protocol"),
        "4.4.0 accepts offsets of an earlier epoch while the partition has stayed with the member (KIP-1251)",
    ),
    Difference("", ("3.9.1", "consumer-protocol"), _PREVIEW, runs=False),
    Difference("", ("3.9.1", "consumer_protocol"), _PREVIEW, runs=False),
)
