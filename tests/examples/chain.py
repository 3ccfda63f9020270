"""Three small services in a row, A -> B -> C, keyed by account throughout: each account's order is kept."""

import msgspec

from statehold import Handler, Output, Record, Service, Table

MODULUS = 2**61 - 1


class Step(msgspec.Struct, frozen=True):
    """The input of A."""

    id: int
    account: str
    amount: int


class Total(msgspec.Struct, frozen=True):
    """What A says: the sum so far, and how many steps made it."""

    id: int
    account: str
    count: int
    total: int


class Peak(msgspec.Struct, frozen=True):
    """What B says: the total, and the highest so far."""

    id: int
    account: str
    total: int
    peak: int


class Trail(msgspec.Struct, frozen=True):
    """What C says: how far below the peak, and a number that depends on every earlier value and its place."""

    id: int
    account: str
    below: int
    trail: int


class A(Handler[Step]):
    totals = Table(key=str, value=Total)
    out = Output("chain.ab", value=Total)

    def on_record(self, record: Record[Step]) -> None:
        step = record.value
        before = self.totals.get(step.account, Total(0, step.account, 0, 0))
        after = Total(step.id, step.account, before.count + 1, before.total + step.amount)
        self.totals[step.account] = after
        self.out.send(after, key=step.account)


class B(Handler[Total]):
    peaks = Table(key=str, value=int)
    out = Output("chain.bc", value=Peak)

    def on_record(self, record: Record[Total]) -> None:
        total = record.value
        peak = max(total.total, self.peaks.get(total.account, 0))
        self.peaks[total.account] = peak
        self.out.send(Peak(total.id, total.account, total.total, peak), key=total.account)


class C(Handler[Peak]):
    trails = Table(key=str, value=int)
    out = Output("chain.end", value=Trail)

    def on_record(self, record: Record[Peak]) -> None:
        peak = record.value
        below = peak.peak - peak.total
        trail = (self.trails.get(peak.account, 1) * 31 + below + peak.id) % MODULUS
        self.trails[peak.account] = trail
        self.out.send(Trail(peak.id, peak.account, below, trail), key=peak.account)


first = Service("chain-a", input="chain.start", handler=A)
second = Service("chain-b", input="chain.ab", handler=B)
third = Service("chain-c", input="chain.bc", handler=C)
