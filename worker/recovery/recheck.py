"""What a partition would be refused for is looked at again before it is: a leader may not tell its whole log yet.

ListOffsets answered for seconds with an end in the midst of committed transactions, after the partition's leader had
been lost (seen with three brokers, Kafka 4.4, one of them frozen). A short log looks like a torn transaction, like
damage, or like an offset that is ahead of the last mark. Damage stays; this does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeVar

from statehold.errors import DamagedIncrement, NoMark, OffsetDisagrees, TornTransaction
from statehold.worker.common.context import Tools
from statehold.worker.common.signals import Signals

T = TypeVar("T")

#: a finding must last for so many seconds, or so many looks; between two of them it waits
_LASTS: Final = 5.0
_LOOKS: Final = 6
_PAUSE: Final = 1.0


def surely(look: Callable[[], T], tools: Tools, signals: Signals) -> T:
    """`look()`, again and again while it finds a log that may only be short. Ends early when the partition leaves.

    :raises TornTransaction, OffsetDisagrees, DamagedIncrement, NoMark: what was still found at the last look.
    """
    until = math.inf
    for _ in range(_LOOKS - 1):
        try:
            return look()
        except (TornTransaction, OffsetDisagrees, DamagedIncrement, NoMark) as finding:
            now = tools.clock()
            until = min(until, now + _LASTS)
            if now >= until or signals.leaving():
                raise
            tools.log.warning("kafka_retry", doing="look again", cause=str(finding))
        signals.any.wait(_PAUSE)
    return look()
