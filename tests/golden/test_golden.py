"""What earlier releases wrote stays readable, by the code that wrote it and by its next version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from tests.golden import bank_v1, bank_v2, bank_v3
from tests.golden.around import Around
from tests.golden.bank_v1 import Move
from tests.golden.generate import AHEAD, AROUND, JOINED, MODES, SEVERAL, SHARED
from tests.golden.joined import Joined
from tests.golden.reading import HERE, driver_of, expected_of
from tests.golden.several import Several
from tests.support import inside

from statehold import Handler, Table
from statehold.errors import NonDeterministicReplay, UnknownSchema, UpgradeUnfinished
from statehold.snapshot.format import frame, records
from statehold.testing import Driver

FORMATS = sorted(path.name for path in HERE.glob("format-*"))
#: which release of the service wrote which folder
WRITERS: dict[str, type[Handler[Any]]] = {
    "format-1": bank_v1.Bank,
    "format-2": bank_v2.Bank,
    "format-3": bank_v3.Bank,
    "format-4": bank_v3.Bank,
    "format-5": bank_v3.Bank,
    "format-6": bank_v3.Bank,
    "format-7": bank_v3.Bank,
}
#: the service that wrote a file of this name; the others: `WRITERS`
SERVICES: dict[str, type[Handler[Any]]] = {
    **dict.fromkeys((*AROUND, *AHEAD), Around),
    **dict.fromkeys(SEVERAL, Several),
    **dict.fromkeys((*JOINED, "joined-in-turn"), Joined),
}
#: a gap of a release that removed rows of joins one by one, so no later one repeats it
NOT_REPEATED = ("format-5", "joined-interval")
FILES = [(path.parent.name, path.stem) for path in sorted(HERE.glob("format-*/*.jsonl"))]
EVERY = [each for each in FILES if each != NOT_REPEATED]


def writer_of(folder: str, name: str) -> type[Handler[Any]]:
    return SERVICES.get(name, WRITERS[folder])


def path_of(folder: str, mode: str) -> Path:
    return HERE / folder / f"{mode}.jsonl"


def mode_of(name: str) -> float | Literal["commit", "off"]:
    return {**MODES, **AROUND, **AHEAD, **JOINED, **SEVERAL, **SHARED, "beside": "off"}.get(name, "commit")


def tables_of(driver: Driver) -> Any:
    tables = {name: sorted(driver.table(name).items()) for name in expected_names(driver)}
    return json.loads(json.dumps(msgspec.to_builtins(tables)))


def expected_names(driver: Driver) -> list[str]:
    return list(inside.lane(driver).engine().state.tables)


def test_there_are_files_of_every_format_that_is_written() -> None:
    assert [f"format-{number}" for number in range(frame.OLDEST, frame.NEWEST + 1)] == FORMATS


@pytest.mark.parametrize(("folder", "mode"), EVERY)
def test_a_golden_file_is_restored_and_continues(folder: str, mode: str) -> None:
    expected = expected_of(path_of(folder, mode))
    driver = driver_of(path_of(folder, mode), writer_of(folder, mode), delta_interval=mode_of(mode))
    driver.restore()
    assert driver.position() == expected["position"]
    assert driver.commit_record().digest.hex() == expected["digest"]
    assert tables_of(driver) == expected["tables"]
    driver.feed(Move("account-00", 1, 20_261_200), key="account-00", input=driver.names.input)
    driver.crash()
    driver.restore()
    assert driver.commit_record().n > expected["n"]


@pytest.mark.parametrize(("folder", "mode"), EVERY)
def test_each_full_snapshot_of_a_golden_file_is_a_base(folder: str, mode: str) -> None:
    """The newest first, then, when its chunks are gone, the older one."""
    expected = expected_of(path_of(folder, mode))
    driver = driver_of(path_of(folder, mode), writer_of(folder, mode), delta_interval=mode_of(mode))
    newest, older, *_ = expected["fulls"]
    driver.broker.log(driver.names.snapshot, 0).replace(newest, b"\x01Fdamaged beyond all repair")
    driver.restore()
    assert [fields["full"] for event, fields in driver.events if event == "restored"] == [older]
    assert tables_of(driver) == expected["tables"]


@pytest.mark.parametrize("mode", SHARED)
def test_full_snapshots_that_share_chunks_are_in_format_7(mode: str) -> None:
    driver = driver_of(path_of("format-7", mode), bank_v3.Bank, delta_interval=mode_of(mode))
    found = [records.unpack(each.value()) for each in driver.broker.log(driver.names.snapshot, 0).committed()]
    made = [each for each in found if isinstance(each, records.Manifest)]
    assert [each.shared > 0 for each in made] == [False, True, True, False, True, True]
    assert {each.format for each in made} == {frame.SHARED}
    rows = [msgspec.msgpack.decode(each.entry) for each in found if isinstance(each, records.Chunk)]
    assert None in [value for _, _, values in rows for value in values], "a chunk deletes rows of an earlier one"


def test_a_gap_with_rows_of_joins_of_format_5_is_left_to_the_release_that_wrote_it() -> None:
    driver = driver_of(path_of(*NOT_REPEATED), Joined, delta_interval=2.0)
    with pytest.raises(UpgradeUnfinished, match="removed the rows of pairs one by one"):
        driver.restore()
    assert not [event for event, _ in driver.events if event == "live"]


def test_commands_of_the_control_topic_are_replayed_from_their_commit_records() -> None:
    path = path_of("format-3", "beside")
    noted = [note for key, note in expected_of(path)["tables"]["notes"] if note.startswith("note-")]
    assert len(noted) == 4
    driver = driver_of(path, bank_v3.Bank, delta_interval="off")
    assert driver.broker.log(driver.names.control, 0).end == 0, "nothing is read from the control topic"
    driver.restore()
    assert sorted(note for note in driver.table("notes").values() if note.startswith("note-")) == sorted(noted)


@pytest.mark.parametrize("mode", MODES)
def test_the_next_version_of_the_service_reads_old_values_and_leaves_them_as_they_are(mode: str) -> None:
    old = expected_of(path_of("format-1", mode))
    driver = upgraded(mode)
    assert driver.commit_record().digest.hex() == old["digest"]
    accounts = {name: bank_v2.account_from_v1(bank_v1.Account(**value)) for name, value in old["tables"]["accounts"]}
    assert driver.table("accounts") == accounts
    assert driver.table("days") == {day: (cents, "cents") for day, cents in old["tables"]["days"]}
    assert driver.commit_record().digest.hex() == old["digest"], "reading has changed what is stored"
    one, *others = sorted(accounts)
    before = stored(driver, "accounts")
    driver.feed(Move(one, 5, 20_261_200), key=one)
    driver.commit()
    after = stored(driver, "accounts")
    assert after[one][:2] == b"\xc1\x02"
    assert {key: after[key] for key in others} == {key: before[key] for key in others}
    driver.crash()
    driver.restore()  # a mixture of versions: the digest of it is compared
    assert driver.table("accounts")[one].entries == accounts[one].entries + 1
    assert driver.commit_record().schemas == {"accounts": 2, "days": 2}


@pytest.mark.parametrize("mode", MODES)
def test_the_version_before_rejects_newer_values_before_going_live(mode: str) -> None:
    driver = driver_of(path_of("format-2", mode), bank_v1.Bank, delta_interval=MODES.get(mode, "commit"))
    with pytest.raises(
        UnknownSchema, match=r"table 'accounts' holds values of version 2, this code declares version 1"
    ):
        driver.restore()
    assert not [event for event, _ in driver.events if event == "live"]


def test_versions_wait_for_the_end_of_the_upgrade() -> None:
    driver = driver_of(path_of("format-1", "commit"), bank_v2.Bank)
    with pytest.raises(UpgradeUnfinished, match=r"'accounts' version 2, 'days' version 2.*still written in format 1"):
        driver.restore()


def test_a_commit_record_of_format_1_is_written_as_before() -> None:
    """The new release adds no byte that the old one would have to know."""
    driver = driver_of(path_of("format-1", "commit"), bank_v1.Bank)
    driver.restore()
    driver.feed(Move("account-00", 1, 20_261_200), key="account-00")
    driver.commit()
    written = [message.value() or b"" for message in driver.broker.log(driver.names.changelog, 0).committed()]
    assert {data[0] for data in written} == {1}
    known = set(msgspec.msgpack.decode(frame.unpack(written[0 if written[0][1:2] == b"M" else 1])[1]))
    newest = set(msgspec.msgpack.decode(frame.unpack(written[-1])[1]))
    assert newest - known <= {"parts", "keys", "last_delta", "outputs", "fulls", "effects"}


def test_the_way_back_is_open_until_a_newer_value_is_written() -> None:
    driver = upgraded("commit")
    assert len(driver.table("accounts")) > 1
    driver.crash()
    with_code(driver, bank_v1.Bank).restore()
    driver = with_code(driver, bank_v2.Bank)
    driver.restore()
    driver.feed(Move("account-00", 1, 20_261_200), key="account-00")
    driver.commit()
    driver.crash()
    with pytest.raises(UnknownSchema, match="driver wrote the last commit record"):
        with_code(driver, bank_v1.Bank).restore()
    with_code(driver, bank_v2.Bank).restore()


def test_an_upcaster_that_is_still_needed_is_missed_before_going_live() -> None:
    class Bank(bank_v2.Bank):
        accounts = Table(key=str, value=bank_v2.Account, version=3, upcasters={2: lambda old: old})

    driver = upgraded("commit")
    driver.feed(Move("account-00", 1, 20_261_200), key="account-00")
    driver.commit()
    driver.crash()
    with pytest.raises(UnknownSchema, match="'accounts' holds values of version 1, this code reads others"):
        with_code(driver, Bank).restore()


def test_a_gap_is_replayed_by_the_code_that_left_it() -> None:
    """New code stores other bytes, so the digest would be that of another state."""
    driver = upgraded("off")
    driver = with_code(driver, bank_v2.Bank)
    driver.restore()
    driver.feed(Move("account-00", 1, 20_261_200), key="account-00")
    driver.commit()
    driver.crash()

    class Bank(bank_v2.Bank):
        days = Table(key=int, value=tuple[int, str], sorted=True, version=3, upcasters={1: tuple, 2: tuple})

    with pytest.raises(NonDeterministicReplay, match="run the code that wrote the commit record"):
        with_code(driver, Bank).restore()
    with_code(driver, bank_v2.Bank).restore()


def upgraded(mode: str) -> Driver:
    """The old release finished the upgrade of the format, and the new one took over."""
    before = driver_of(path_of("format-1", mode), bank_v1.Bank, delta_interval=MODES.get(mode, "commit"))
    before.restore()
    before.command("finish-upgrade")
    before.commit()
    assert before.commit_record().format == frame.NEWEST
    before.stop()  # a gap would have to be replayed by the code that left it
    driver = with_code(before, bank_v2.Bank)
    driver.restore()
    return driver


def test_the_end_of_the_upgrade_records_the_types_of_a_running_partition() -> None:
    """Until then an older release may read the partition, so nothing says so."""
    driver = driver_of(path_of("format-4", "commit"), bank_v3.Bank)
    driver.restore()
    assert not [event for event, _ in driver.events if event == "table_types_taken"]
    driver.command("finish-upgrade")
    driver.commit()
    assert driver.commit_record().types.keys() >= {"accounts", "days"}
    driver.crash()
    driver.restore()
    assert not [event for event, _ in driver.events if event == "table_types_taken"]


def with_code(before: Driver, kind: type[Handler[Any]]) -> Driver:
    """The same topics under another release of the service."""
    driver = Driver(kind, settings=before.settings)
    inside.change_code(driver, before)
    return driver


def stored(driver: Driver, table: str) -> dict[Any, bytes]:
    return dict(inside.lane(driver).engine().state.tables[table].stored)


def test_records_of_every_format_say_which_it_is() -> None:
    for folder in FORMATS:
        lines = driver_of(path_of(folder, "commit"), WRITERS[folder]).broker.logs
        written = [m.value() or b"" for (topic, _), log in lines.items() if topic != "input" for m in log.committed()]
        assert {data[0] for data in written} == {int(folder[-1])}
        assert all(records.unpack(data) for data in written)
