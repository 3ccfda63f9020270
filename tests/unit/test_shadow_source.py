"""A shadow's readers: each message is fetched once, memory is bounded, and a reader is made again after an error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from statehold.api.record import MemoryMessage, Message
from statehold.shadow.source import LastingReader, SharedReader


class Counting:
    """A `FollowingReader` of one partition with records at even offsets, as if markers were between."""

    def __init__(self) -> None:
        self.fetched: list[int] = []
        self.closed = 0

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return 0, 1000

    def ends(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        return dict.fromkeys(partitions, 1000)

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Message]]:
        offsets = [offset for offset in range(start, end) if offset % 2 == 0]
        for low in range(0, len(offsets), 10):
            batch = offsets[low : low + 10]
            self.fetched += batch
            yield [MemoryMessage(topic, partition, offset, b"x" * 100) for offset in batch]

    def cancelled(self) -> bool:
        return False

    def close(self) -> None:
        self.closed += 1


def offsets(reader: SharedReader, start: int, end: int) -> list[int]:
    return [message.offset() or 0 for batch in reader.read("t", 0, start, end) for message in batch]


def evens(start: int, end: int) -> list[int]:
    return [offset for offset in range(start, end) if offset % 2 == 0]


def test_what_one_partition_has_read_is_not_fetched_for_the_others() -> None:
    made = Counting()
    reader = SharedReader(lambda: made)

    for _ in range(4):
        assert offsets(reader, 10, 101) == evens(10, 101)
    assert offsets(reader, 50, 101) == evens(50, 101)
    assert made.fetched == evens(10, 101)

    assert offsets(reader, 90, 201) == evens(90, 201)
    assert made.fetched == evens(10, 201)
    assert offsets(reader, 20, 60) == evens(20, 60)  # an end within what is held
    assert made.fetched == evens(10, 201)


def test_a_read_that_ends_early_is_continued() -> None:
    made = Counting()
    reader = SharedReader(lambda: made)
    assert [message.offset() for message in next(reader.read("t", 0, 0, 500))] == evens(0, 20)

    assert offsets(reader, 0, 100) == evens(0, 100)
    assert made.fetched == evens(0, 100)


def test_memory_is_bounded_and_what_was_dropped_is_fetched_again() -> None:
    made = Counting()
    reader = SharedReader(lambda: made, most=6_000)  # ten messages

    assert offsets(reader, 0, 400) == evens(0, 400)
    assert offsets(reader, 380, 400) == evens(380, 400)
    assert made.fetched == evens(0, 400)
    assert offsets(reader, 0, 400) == evens(0, 400)
    assert made.fetched == evens(0, 400) * 2


def test_a_reader_is_made_again_after_it_was_closed() -> None:
    made: list[Counting] = []

    def make() -> Counting:
        made.append(Counting())
        return made[-1]

    reader = LastingReader(make)
    assert made == []
    assert reader.bounds("t", 0) == (0, 1000)
    reader.close()
    reader.close()
    assert reader.ends("t", [0]) == {0: 1000}
    assert [each.closed for each in made] == [1, 0]

    shared = SharedReader(make)
    offsets(shared, 0, 100)
    shared.close()
    offsets(shared, 0, 100)
    assert [each.fetched for each in made[2:]] == [evens(0, 100)] * 2
