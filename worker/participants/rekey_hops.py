"""How far records have come by sends of a `Rekey`: a metric, and a warning before the limit is reached."""

from __future__ import annotations

import math
from typing import Final

from statehold.bound.rekey import Sends
from statehold.snapshot.format.records import CommitRecord
from statehold.telemetry import metrics
from statehold.worker.common.context import Tools
from statehold.worker.transaction.participants import CommitDraft, Participant

#: seconds between two log events of a partition
_PAUSE: Final = 60.0


class RekeyHops(Participant):
    """Used by the partition's thread, during one live phase."""

    def __init__(self, tools: Tools, sends: Sends) -> None:
        self._tools, self._sends, self._most = tools, sends, tools.settings.rekey.max_hops
        #: the most hops of a record of the transaction whose commit is in flight, and since the partition is live
        self._hops = self._highest = 0
        self._logged = -math.inf

    def opened(self, record: CommitRecord) -> None:
        self._sends.take()  # those of a replay were noted when they were live

    def contribute(self, draft: CommitDraft) -> None:
        self._hops = self._sends.take()

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        hops, self._hops, now = self._hops, 0, self._tools.clock()
        if hops > self._highest:
            self._highest = hops
            self._tools.metrics.set(metrics.REKEY_HOPS, hops)
        if hops > 1 and 2 * hops >= self._most and now - self._logged >= _PAUSE:
            self._logged = now
            self._tools.log.warning(
                "rekey_hops",
                hops=hops,
                limit=self._most,
                position=record.position(self._tools.place.input),
                cause="records go on from one send of a Rekey to the next: the handler may send to itself without an "
                "end. Next: look at the methods of its Rekeys; at the limit a send raises RekeyLoop",
            )

    def rolled_back(self) -> None:
        self._hops = 0
        self._sends.take()
