"""Where an added input starts, and what an input that ends still holds, on logs in memory (rule M5)."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.support.snapshot_records import commit_record

from statehold.admin.inputs import ends as module
from statehold.admin.inputs.ends import InputEnds, require_named
from statehold.admin.inputs.requested import request_of
from statehold.admin.state.stopped_service import StoppedService
from statehold.errors import ToolRefused, TopicMissing, UsageError
from statehold.kafka.admin.admin import TopicFacts
from statehold.snapshot.format.records import CommitRecord
from statehold.testing.memory.broker import MemoryBroker
from statehold.testing.memory.clients import MemoryReader
from statehold.testing.memory.clock import ManualClock

RECORD = commit_record(
    3, positions={"trades": 4, "prices": 2}, inputs=("trades", "prices"), topic_ids={"trades": "t", "prices": "p"}
)


class Stopped:
    """The part of a stopped service that looks at topics; it stands for its own admin client, too."""

    def __init__(self) -> None:
        self.broker = MemoryBroker(ManualClock())
        self.topics: dict[str, TopicFacts] = {}
        for topic, count in {"trades": 4, "prices": 2, "quotes": 5}.items():
            self.topics[topic] = TopicFacts(topic, topic[0], 1, 1)
            self.write(topic, count)

    @property
    def admin(self) -> Stopped:
        return self

    def write(self, topic: str, count: int) -> None:
        for _ in range(count):
            self.broker.log(topic, 0).append(b"v", b"k")

    def describe(self, topics: list[str]) -> dict[str, TopicFacts | None]:
        return {topic: self.topics.get(topic) for topic in topics}

    def reader(self) -> MemoryReader:
        return MemoryReader(self.broker, lambda: False)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self.reader().bounds(topic, partition)

    def ends(self, *options: str, quiet: float = 0.0, discard: bool = False) -> InputEnds:
        """Return the ends for options such as `add quotes=end`."""
        given: dict[str, list[str]] = {"add": [], "remove": [], "rename": []}
        for option in options:
            name, _, value = option.partition(" ")
            given[name].append(value)
        request = request_of(given["add"], given["remove"], given["rename"], discard=discard)
        return InputEnds(cast("StoppedService", self), request, ("trades", "prices"), 1, quiet)


@pytest.fixture
def stopped() -> Stopped:
    return Stopped()


@pytest.mark.parametrize(("text", "position"), [("beginning", 2), ("end", 5), ("3", 3), ("5", 5)])
def test_an_added_input_starts_where_the_option_says(stopped: Stopped, text: str, position: int) -> None:
    stopped.broker.log("quotes", 0).truncate(2)
    ends = stopped.ends(f"add quotes={text}")
    assert ends.start("quotes", 0) == position
    assert ends.behind("quotes", 0, position) == (5 - position, False)


@pytest.mark.parametrize("text", ["1", "6"])
def test_an_offset_that_the_topic_does_not_hold_is_rejected(stopped: Stopped, text: str) -> None:
    stopped.broker.log("quotes", 0).truncate(2)
    with pytest.raises(ToolRefused, match=rf"quotes\[0\] holds offsets 2 to 5, not {text}. Nothing was changed"):
        stopped.ends(f"add quotes={text}").start("quotes", 0)


def test_a_topic_that_does_not_fit_is_rejected(stopped: Stopped) -> None:
    with pytest.raises(TopicMissing, match="other: change the inputs: the topic does not exist"):
        stopped.ends("add other=end")
    stopped.topics["quotes"] = TopicFacts("quotes", "q", 3, 1)
    with pytest.raises(ToolRefused, match="quotes has 3 partitions, the state has 1"):
        stopped.ends("rename prices=quotes")


def test_an_input_that_is_processed_to_its_end_leaves_nothing(stopped: Stopped) -> None:
    for option in ("remove prices", "rename prices=quotes"):
        found = stopped.ends(option).removed("prices", 0, RECORD)
        assert (found.old_position, found.unread, found.gone) == (2, 0, 0)


def test_unread_records_of_an_input_that_ends_are_named(stopped: Stopped) -> None:
    stopped.write("prices", 3)
    said = r"prices\[0\]@2: 3 records are not processed yet. Nothing was changed. Next: stop its producers"
    with pytest.raises(ToolRefused, match=f"{said}.*; or add --discard"):
        stopped.ends("remove prices").removed("prices", 0, RECORD)
    with pytest.raises(ToolRefused, match=said) as failure:
        stopped.ends("rename prices=quotes").removed("prices", 0, RECORD)
    assert "--discard" not in str(failure.value)
    found = stopped.ends("remove prices", discard=True).removed("prices", 0, RECORD)
    assert (found.unread, found.more, found.gone) == (3, False, 0)


def test_discard_is_about_removed_inputs_only(stopped: Stopped) -> None:
    stopped.write("prices", 3)
    ends = stopped.ends("remove trades", "rename prices=quotes", discard=True)
    assert ends.removed("trades", 0, RECORD).unread == 0
    with pytest.raises(ToolRefused, match="3 records are not processed yet"):
        ends.removed("prices", 0, RECORD)
    with pytest.raises(UsageError, match="--discard needs --remove"):
        require_named(request_of([], [], ["prices=quotes"], discard=True))


def test_unread_records_that_retention_has_deleted_are_counted(stopped: Stopped) -> None:
    stopped.write("prices", 4)
    stopped.broker.log("prices", 0).truncate(5)
    with pytest.raises(ToolRefused, match="1 records are not processed yet, and retention has deleted 3 offsets"):
        stopped.ends("remove prices").removed("prices", 0, RECORD)
    found = stopped.ends("remove prices", discard=True).removed("prices", 0, RECORD)
    assert (found.unread, found.gone) == (1, 3)
    stopped.broker.log("prices", 0).truncate(6)  # all of them
    with pytest.raises(ToolRefused, match="retention has deleted 4 offsets"):
        stopped.ends("remove prices").removed("prices", 0, RECORD)


def test_the_count_of_unread_records_has_a_limit(stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNTED", 3)
    stopped.write("prices", 7)
    with pytest.raises(ToolRefused, match="at least 3 records are not processed yet"):
        stopped.ends("remove prices").removed("prices", 0, RECORD)


@pytest.mark.parametrize("what", ["does not exist any more", "was deleted and created again"])
def test_records_of_another_topic_of_that_name_are_not_counted(stopped: Stopped, what: str) -> None:
    if "exist" in what:
        del stopped.topics["prices"]
    else:
        stopped.topics["prices"] = TopicFacts("prices", "new", 7, 1)
    with pytest.raises(ToolRefused, match=rf"prices\[0\]@2: the topic {what}, so its unread records are unknown"):
        stopped.ends("remove prices").removed("prices", 0, RECORD)
    assert stopped.ends("remove prices", discard=True).removed("prices", 0, RECORD).unread == 0


def test_a_record_of_a_writer_that_knew_no_ids_names_the_topic(stopped: Stopped) -> None:
    old = CommitRecord(**{name: getattr(RECORD, name) for name in RECORD.__struct_fields__} | {"topic_ids": {}})
    assert stopped.ends("remove prices").removed("prices", 0, old).unread == 0


def test_a_new_topic_that_has_lost_records_does_not_replace_an_input(stopped: Stopped) -> None:
    assert stopped.ends("rename prices=quotes").start_of_renamed("quotes", 0) == 0
    stopped.broker.log("quotes", 0).truncate(1)
    with pytest.raises(ToolRefused, match=r"quotes\[0\] begins at 1: retention has deleted unprocessed records"):
        stopped.ends("rename prices=quotes").start_of_renamed("quotes", 0)


@pytest.mark.parametrize("option", ["remove prices", "rename prices=quotes"])
def test_a_producer_that_keeps_writing_is_noticed(stopped: Stopped, option: str) -> None:
    ends = stopped.ends(option)
    ends.require_quiet()
    stopped.write("trades", 1)
    ends.require_quiet()
    stopped.write("prices", 1)
    with pytest.raises(ToolRefused, match=r"prices\[0\]: a producer keeps writing, from 2 to 3"):
        ends.require_quiet()


def test_a_producer_of_a_discarded_input_may_keep_writing(stopped: Stopped) -> None:
    ends: Any = stopped.ends("remove prices", discard=True)
    stopped.write("prices", 1)
    ends.require_quiet()
