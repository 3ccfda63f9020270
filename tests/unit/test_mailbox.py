"""Batches between the manager and a partition: in order, cut to what fits, none of an older stream."""

from __future__ import annotations

import threading

from tests.support.messages import batch

from statehold.worker.common.mailbox import Batch, Mailbox


def test_a_batch_is_cut_to_what_fits_and_the_rest_continues_it() -> None:
    box = Mailbox()
    box.put(Batch(0, 0, batch(0, 1, 4)))
    first, rest = box.take(2, 0), box.take(10, 0)
    assert first == Batch(0, 0, first.messages) if first else None
    assert first is not None
    assert rest is not None
    assert [first.next, rest.previous, rest.next] == [2, 2, 5]
    assert box.depth == 0


def test_depth_counts_records() -> None:
    box = Mailbox()
    box.put(Batch(0, 0, batch(0, 1, 2)))
    box.put(Batch(0, 3, batch(3)))
    assert box.depth == 4
    box.take(2, 0)
    assert box.depth == 2


def test_a_new_stream_drops_what_is_here_and_what_comes_of_the_old_one() -> None:
    box = Mailbox()
    box.put(Batch(0, 0, batch(0)))
    stream = box.open_stream()
    box.put(Batch(0, 1, batch(1)))
    assert (box.depth, box.take(1, 0)) == (0, None)
    box.put(Batch(stream, 0, batch(0)))
    assert box.depth == 1


def test_a_signal_ends_the_wait_once() -> None:
    box = Mailbox()
    box.signal()
    assert box.take(1, 60) is None
    thread = threading.Thread(target=box.take, args=(1, 600), daemon=True)
    thread.start()
    box.signal()
    thread.join(60)
    assert not thread.is_alive()
