"""The harness itself, without a broker: schedules repeat, and each checker finds what it is there to find."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import xxhash
from tests.chaos import matrix, schedule, test_chaos
from tests.chaos.arena import Shape
from tests.chaos.catching import CATCHES
from tests.chaos.chain import Chain, StateAt
from tests.chaos.checking import Verdict, check_exact, check_stuck
from tests.chaos.failing import check_dead_letters, check_tries
from tests.chaos.faults import REGISTRY
from tests.chaos.history import History, Patience
from tests.chaos.mutants import MUTANTS
from tests.chaos.observer import partitions_of
from tests.chaos.operating import Operator
from tests.chaos.points import POINTS, Points
from tests.chaos.rekeyed import Moved, check_moves, movements
from tests.chaos.remote import Remote, ask
from tests.chaos.rows import Row
from tests.chaos.workers import ROOT, Worker
from tests.chaos.workload import Running, Sent, Trade, fold
from tests.support.processes import await_true

from statehold.dev.ports import free_ports

SENT = [Sent(n, Trade(f"t{n}", f"a{n % 2}", "X", "BUY", 1, n + 1, 0), 0.0) for n in range(6)]


def outputs(answers: Sequence[Running]) -> list[Row]:
    return [Row(0, place, msgspec.json.encode(answer), None) for place, answer in enumerate(answers)]


def right() -> list[Running]:
    answers = fold({0: SENT}).answers
    return [answer for pair in zip(answers["a0"], answers["a1"], strict=True) for answer in pair]


def anomalies(answers: Sequence[Running]) -> set[str]:
    verdict = Verdict()
    check_exact(verdict, fold({0: SENT}), outputs(answers))
    return {name for name, texts in verdict.findings.items() if texts}


def test_a_seed_is_a_schedule() -> None:
    shape = Shape(brokers=3)
    codes = schedule.usual(shape)

    def plan_of(seed: int) -> list[tuple[float, str, int, float]]:
        return [(p.at, str(p.fault), p.fault.victim, p.fault.hold) for p in schedule.plan(seed, 300, codes, shape)]

    assert plan_of(3) == plan_of(3)
    assert plan_of(3) != plan_of(4)
    assert {line[1].split(" ")[0] for line in plan_of(3)} == set(codes), "not every fault came once within five minutes"


def test_a_fault_that_does_not_fit_is_rejected() -> None:
    with pytest.raises(ValueError, match="F11"):
        schedule.plan(1, 60, ["F11"], Shape(brokers=1))
    assert "F7" not in schedule.usual(Shape(target="quix"))
    assert {"F1", "F4", "F5", "F15", "F18"} <= REGISTRY.keys()


def test_a_right_history_has_no_anomaly() -> None:
    assert anomalies(right()) == set()


def test_a_duplicate_in_the_input_is_answered_twice() -> None:
    again = Sent(SENT[-1].offset + 1, SENT[-1].trade, 0.0)
    twice = [answer for answers in fold({0: [*SENT, again]}).answers.values() for answer in answers]
    for answers, due in ((twice, set[str]()), (twice[:-1], {"lost"}), ([*twice, twice[-1]], {"duplicated"})):
        verdict = Verdict()
        check_exact(verdict, fold({0: [*SENT, again]}), outputs(answers))
        assert {name for name, texts in verdict.findings.items() if texts} == due


def test_each_anomaly_is_found_by_its_name() -> None:
    good = right()
    assert anomalies(good[:-1]) == {"lost"}
    assert anomalies([*good, good[0]]) == {"duplicated"}
    assert anomalies([good[2], good[1], good[0], *good[3:]]) == {"reordered"}
    assert anomalies([*good, Running("t99", "a0", 0, 9)]) == {"foreign"}
    wrong = Running(good[3].id, good[3].account, good[3].total + 1, good[3].count)
    assert anomalies([*good[:3], wrong, *good[4:]]) == {"wrong value"}


def test_records_before_the_position_are_stuck_and_only_those_behind_it_are_lost() -> None:
    """Six records, the partition stands at 4; answers are missing for the third and the last two."""
    inputs, verdict = {0: SENT}, Verdict()
    stuck = check_stuck(verdict, inputs, {0: 4}, may_stop=())
    check_exact(verdict, fold(inputs, stuck), outputs([answer for answer in right()[:4] if answer.id != "t2"]))
    assert verdict.findings["stuck"] == ["partition 0 stands at 4: 2 records wait, to 5"]
    assert verdict.findings["lost"] == ["t2 at (0, 2)"]


def test_a_partition_that_is_at_its_end_or_may_stop_is_not_stuck() -> None:
    verdict = Verdict()
    assert check_stuck(verdict, {0: SENT, 1: SENT}, {0: 6, 1: 2}, may_stop=(1,)) == {}
    assert verdict.good


def test_a_late_trade_of_a_stuck_run_waits_on_its_retry_topic() -> None:
    late = [failing_trade(0, "a0", "late"), failing_trade(1, "a1", "X")]
    expected = fold({0: late})
    answers = list(expected.answers["a1"])
    for found, name in (({"stuck": ["nothing came"]}, "stuck"), ({}, "lost")):
        verdict = Verdict()
        for anomaly, texts in found.items():
            verdict.add(anomaly, texts)
        check_exact(verdict, expected, outputs(answers))
        assert {anomaly for anomaly, texts in verdict.findings.items() if texts} == {name}


def test_a_wait_ends_without_progress_and_not_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(tmp_path / "history")
    history.close()
    moments = iter([0, 50, 100, 150, 160, 211])
    monkeypatch.setattr(history, "now", lambda: next(moments))
    patience = Patience(history, 60.0)  # at 0
    assert [patience.over(progress) for progress in (1, 2, 3, 3, 3)] == [False, False, False, False, True]


def frame(kind: str, body: Any) -> bytes:
    packed = msgspec.msgpack.encode(body)
    return (
        b"\x01"
        + kind.encode()
        + b"\0\0"
        + len(packed).to_bytes(4, "little")
        + xxhash.xxh3_64_intdigest(packed).to_bytes(8, "little")
        + packed
    )


def commit_record(n: int, start: int, end: int, attempt: str = "one", **more: Any) -> Row:
    digest = StateAt(SENT).digest(end)
    body = {"n": n, "attempt": attempt, "start": start, "positions": {"in": end}, "digest": digest, "parts": 0}
    return Row(0, 10 * n + 1, frame("M", {**body, "outputs": end - start, **more}), None)


def header(n: int, start: int, attempt: str = "one") -> Row:
    return Row(0, 10 * n, frame("H", [n, attempt, "line", start, []]), None)


def walked(*rows: Row) -> Chain:
    chain = Chain(0, ["in"], SENT)
    chain.walk(rows)
    chain.check_digests()
    return chain


WHOLE = [commit_record(0, 0, 0), header(1, 0), commit_record(1, 0, 2), header(2, 2), commit_record(2, 2, 4)]


def test_a_whole_chain_has_no_finding() -> None:
    chain = walked(*WHOLE)
    chain.check_outputs([(1, 0), (1, 1), (2, 0), (2, 1)])
    assert chain.findings == []


@pytest.mark.parametrize(
    ("rows", "reported"),
    [
        ([*WHOLE[:3], WHOLE[3], header(3, 4), commit_record(3, 4, 5)], "torn commit"),
        ([*WHOLE[:3], WHOLE[4]], "torn abort"),
        ([*WHOLE, header(3, 4)], "ends within transaction"),
        ([*WHOLE[:3], header(3, 2), commit_record(3, 2, 4)], "follows mark 1"),
        ([*WHOLE[:3], header(2, 1), commit_record(2, 1, 4)], "ended at 2"),
        ([*WHOLE[:3], header(2, 2), commit_record(2, 2, 4, digest=b"0" * 16)], "digest"),
        (
            [*WHOLE, header(3, 4, "two"), commit_record(3, 4, 5, "two"), header(4, 5), commit_record(4, 5, 6)],
            "two owners at once",
        ),
    ],
)
def test_the_checker_names_each_break_of_a_chain(rows: list[Row], reported: str) -> None:
    assert reported in "\n".join(walked(*rows).findings)


def test_outputs_are_counted_by_transaction() -> None:
    for seen in ([(1, 0), (2, 0), (2, 1)], [(1, 0), (1, 1), (1, 1), (2, 0), (2, 1)], [(1, 0), (1, 1), (2, 0), (3, 0)]):
        chain = walked(*WHOLE)
        chain.check_outputs(seen)
        assert chain.findings


def test_outputs_of_a_transaction_that_records_none_are_found() -> None:
    """A commit record omits the field if it is 0."""
    body = {"n": 1, "attempt": "one", "start": 0, "positions": {"in": 2}, "digest": StateAt(SENT).digest(2), "parts": 0}
    chain = walked(WHOLE[0], header(1, 0), Row(0, 11, frame("M", body), None))
    chain.check_outputs([(1, 0)])
    assert chain.findings == ["partition 0: transaction 1: 1 outputs, its mark says 0"]


def failing_trade(offset: int, account: str, kind: str) -> Sent:
    return Sent(offset, Trade(f"t{offset}", account, kind, "BUY", 1, 1, 0), 0.0)


FAILS = [
    failing_trade(0, "a0", "X"),
    failing_trade(1, "a0", "refused"),
    failing_trade(2, "a1", "late"),
    failing_trade(3, "a0", "garbage"),
    failing_trade(4, "a1", "never"),
    failing_trade(5, "a1", "flaky"),
    failing_trade(6, "a2", "parks"),
    failing_trade(7, "a0", "stops"),
]


def test_the_input_alone_determines_which_trades_fail() -> None:
    expected = fold({0: FAILS})
    assert set(expected.origin) == {"t0", "t2", "t5", "t6"}
    assert expected.late == {"t2"}
    assert expected.tried == {(0, 2): "late", (0, 4): "never"}
    assert {place[1]: (kind, why) for place, (_, kind, why) in expected.dead_letters.due.items()} == {
        1: ("refused", "raised"),
        3: ("garbage", "followed"),
        4: ("never", "raised"),
        7: ("stops", "followed"),
    }
    late = [(3, FAILS[2].trade)]
    before, after = StateAt(FAILS, late), StateAt(FAILS, late)
    assert before.stored(6, 2).keys() == {("accounts", "a0"), ("accounts", "a1"), ("statehold.parked", "a0")}
    assert before.digest(6, 2) != after.digest(6, 3) == StateAt(FAILS, late).digest(6)


def dead_letter(sent: Sent, why: str, error: str, attempts: int, **changed: Any) -> Row:
    plan_of = {"partition": 0, "offset": sent.offset, "why": why, "error": error, "attempts": attempts, "ordered": 1}
    headers = {f"statehold-dead-{name}": str(value).encode() for name, value in (plan_of | changed).items()}
    return Row(0, sent.offset, b"as received", None, sent.trade.account.encode(), headers)


def test_dead_letters_are_compared_with_the_input() -> None:
    given = [Row(0, sent.offset, b"as received", None, sent.trade.account.encode()) for sent in FAILS]
    due = fold({0: FAILS}).dead_letters
    good = [
        dead_letter(FAILS[1], "raised", "Refused", 1),
        dead_letter(FAILS[3], "followed", "Refused", 0),
        dead_letter(FAILS[4], "raised", "TooEarly", 3, ordered=0),
        dead_letter(FAILS[7], "followed", "Refused", 0),
    ]
    assert check_dead_letters(due, given, good) == {}
    assert check_dead_letters(due, given[5:], good) == {}, "the input of the first three is deleted"
    assert check_dead_letters(due, [*given[:3], *given[4:]], good).keys() == {"letter of a handled trade"}
    assert check_dead_letters(due, given, good[1:]).keys() == {"letter lost"}
    assert check_dead_letters(due, given, [*good, good[0]]).keys() >= {"letter duplicated"}
    assert check_dead_letters(due, given, [good[1], good[0], *good[2:]]).keys() == {"letter out of order"}
    assert check_dead_letters(due, given, [good[0]._replace(value=b"{}"), *good[1:]]).keys() == {"letter changed"}
    assert check_dead_letters(due, given, [*good, dead_letter(FAILS[0], "raised", "Loose", 1)]).keys() == {
        "letter of a handled trade"
    }
    early = dead_letter(FAILS[4], "raised", "TooEarly", 2, ordered=0)
    assert check_dead_letters(due, given, [*good[:2], early, good[3]]).keys() == {"letter wrong"}


def test_the_operator_fixes_only_what_the_logs_name(tmp_path: Path) -> None:
    history = History(tmp_path / "history", began=0.0)
    operator, worker = Operator(tmp_path, history, needed=True), Worker("w", tmp_path, [], {}, history)
    plan_of = "trades[1]@7: the handler raised {}. Nothing of this record was kept"
    events = [
        {"event": "failed", "partition": 1, "cause": plan_of.format("Parks: t6")},
        {"event": "stopped", "cause": plan_of.format("Stops: t7")},
        {"event": "failed", "partition": 2, "cause": plan_of.format("Stops: t8")},
        {"event": "stopped", "cause": plan_of.format("Parks: t9")},
        {"event": "failed", "partition": 3, "cause": "trades[3]@4: the handler raised ValueError: t10."},
    ]
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
    with worker.log.open("ab", buffering=0) as log:
        log.write(lines[:-9])  # the last one is not whole yet
        operator.look([worker], set())
        log.write(lines[-9:])
    operator.look([worker], set())
    assert (operator.paused, operator.stopped) == ({"t6": 1}, {"t7"})
    assert not list(Path(operator.fixed).iterdir()), "an operator takes a moment"
    history.began -= 60
    operator.look([worker], {"t6"})
    assert [path.name for path in Path(operator.fixed).iterdir()] == ["t7"]
    operator.close()
    history.close()


def test_tries_are_compared_with_the_input() -> None:
    def tried(sent: Sent) -> Row:
        return Row(0, sent.offset, b"", None, b"", {"statehold-retry-offset": str(sent.offset).encode()})

    due = fold({0: FAILS}).tried
    both = [tried(FAILS[2]), tried(FAILS[4])]
    assert check_tries(due, [both, both[1:]]) == []
    for bad in ([both[:1], both[1:]], [both, []], [[*both, both[0]], both[1:]], [[*both, tried(FAILS[5])], both[1:]]):
        assert check_tries(due, bad)


def test_what_ci_plays_is_among_the_tests_that_run_by_default() -> None:
    for code, named in matrix.IN_CI.items():
        path, name = named.split("::")
        before, found, _ = (ROOT / path).read_text().partition(f"def {name}(")
        assert found, f"{code}: there is no {named}"
        decorators = before.rsplit("\n\n\n", 1)[-1]
        pytestmark = next((line for line in before.splitlines() if line.startswith("pytestmark")), "")
        assert "mark.long" not in decorators + pytestmark, f"{code}: {named} is no test of the default tier"
    played = [code for code, named in matrix.IN_CI.items() if named == matrix.FIXED]
    planned = schedule.plan(test_chaos.SEED, test_chaos.SECONDS, test_chaos.SHORT, Shape(1, 2, 4, 200))
    codes = [each.fault.code for each in planned]
    assert all(codes.count(code) >= 2 for code in played), codes


def test_the_called_system_answers_logs_and_misbehaves(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    remote, trade = Remote(port, tmp_path), Trade("t1", "a1", "X", "SELL", 3, 5, 0)

    async def asked() -> int:
        return await asyncio.wait_for(ask(port, trade), 1.0)

    def outcome() -> object:
        try:
            return asyncio.run(asked())
        except (OSError, TimeoutError) as error:
            return type(error)

    remote.start()
    try:
        await_true(lambda: outcome() == -15, "it answers", 30)
        before = len(remote.answered())
        found = {}
        for mode in ("503", "half", "twice", "late"):
            remote.misbehave(mode)
            found[mode] = outcome(), len(remote.answered()) - before
        assert found["503"] == (ConnectionError, 0)
        assert found["half"] == (ConnectionError, 1)
        assert found["twice"] == (ConnectionError, 2), "it has done its work, and its caller does not know"
        assert found["late"][0] is TimeoutError
        remote.kill()
        assert outcome() is ConnectionRefusedError
        remote.heal()
        await_true(lambda: outcome() == -15, "it answers again", 30)
    finally:
        remote.kill()


ADDED = """
import importlib, pkgutil, sys
import statehold.kafka, statehold.worker
from tests.chaos import mutants, points

def names():
    return {
        f"{owner.__module__}.{owner.__qualname__}.{name}"
        for module in list(sys.modules.values())
        if module.__name__.startswith("statehold")
        for owner in vars(module).values()
        if isinstance(owner, type)
        for name in vars(owner)
    }

points.install(sys.argv[1])
for package in (statehold.kafka, statehold.worker):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
before = names()
for mutant in mutants.MUTANTS:
    mutants.install(mutant)
    if added := names() - before:
        sys.exit(f"mutant {mutant}: there is no {', '.join(added)}")
"""


def test_what_the_harness_wraps_is_there(python: str, root: Path, tmp_path: Path) -> None:
    """A function that was renamed would be wrapped in vain, and the fault would never happen."""
    command = [python, "-c", ADDED, str(tmp_path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_every_mutant_has_a_schedule() -> None:
    assert MUTANTS.keys() == CATCHES.keys()


def test_points_are_claimed_once(tmp_path: Path) -> None:
    points = Points(tmp_path)
    for point in POINTS:
        points.arm(point, "hold 0")
        assert points.reached(point) == []
        points.disarm(point)
    with pytest.raises(AssertionError):
        points.arm("nowhere", "kill")


class Restarting:
    """Answers without the partitions at first, as a broker that has just restarted does."""

    def __init__(self, answers: int) -> None:
        self.left = answers

    def list_topics(self, topic: str, timeout: float) -> Any:
        self.left -= 1
        partitions, error = ({}, "LEADER_NOT_AVAILABLE") if self.left > 0 else ({0: None, 1: None}, None)
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=partitions, error=error)})


def test_a_topic_that_a_restarted_broker_does_not_know_yet_is_not_taken_for_an_empty_one() -> None:
    client: Any = Restarting(3)
    assert partitions_of(client, "input") == [0, 1]
    client = Restarting(10**9)
    with pytest.raises(AssertionError, match="no broker knows its partitions"):
        partitions_of(client, "input", seconds=0.3)


Moves = list[tuple[Moved, Row]]


def moved() -> Moves:
    """Return what must come of SENT: partition 0 sends two trades a transaction, 1 handles two movements a one."""
    found: Moves = []
    totals: dict[str, tuple[int, int]] = {}
    for number, (sent, (account, amount)) in enumerate((one, each) for one in SENT for each in movements(one.trade)):
        total, count = totals.get(account, (0, 0))
        totals[account] = total + amount, count + 1
        answer = Moved(sent.trade.id, account, *totals[account], amount, (0, number // 4 + 1))
        found.append((answer, Row(0, number, b"", (1, number // 2 + 1, number % 2))))
    return found


def money(answers: Moves) -> set[str]:
    found: set[str] = set()
    rows = [row._replace(value=msgspec.json.encode(answer)) for answer, row in answers]
    check_moves(lambda anomaly, texts: found.update([anomaly] if texts else ()), {0: SENT}, rows, 1)
    return found


def test_money_that_moves_as_it_must_is_good() -> None:
    assert money(moved()) == set()


def first(rows: Moves, **changes: Any) -> Moves:
    return [(msgspec.structs.replace(rows[0][0], **changes), rows[0][1]), *rows[1:]]


@pytest.mark.parametrize(("change", "anomalies"), [
    (lambda rows: rows[:-1], {"lost", "sum"}),
    (lambda rows: [*rows, (rows[0][0], rows[0][1]._replace(offset=99))], {"duplicated", "wrong value", "reordered"}),
    (lambda rows: first(rows, sender=(0, 9)), {"sum"}),
    (lambda rows: first(rows, amount=5, total=5), {"lost", "foreign", "sum", "wrong value"}),
    (lambda rows: [(answer, row._replace(partition=row.offset % 3)) for answer, row in rows], {"split key"}),
])  # fmt: skip
def test_money_that_is_lost_or_made_is_found(change: Callable[[Moves], Moves], anomalies: set[str]) -> None:
    assert money(change(moved())) >= anomalies
