"""The two ends of `latency`: sends at a steady rate, reads what comes out, prints the delays in ms as JSON.

Run as `python -m benchmarks.pace '{"bootstrap": ..., "input": ..., "output": ..., "rate": ..., "count": ...}'`.

Each trade gives one output, in order, so the number of an output names its trade. Of a hundred outputs one is decoded,
which checks that.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from typing import Final

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks import load

GIVE_UP_SECONDS = 30.0
#: trades that are encoded before the first is sent; later ones repeat them
_ENCODED: Final = 50_000
#: from this rate on, the sender waits 1 ms for more trades of a batch
_FAST: Final = 10_000


def send(job: dict[str, object], rate: int, count: int, sent: list[float]) -> None:
    """Send `count` trades, a millisecond's worth at a time; note when each went."""
    linger = 1 if rate >= _FAST else 0
    producer = Producer(
        {"bootstrap.servers": job["bootstrap"], "linger.ms": linger, "queue.buffering.max.messages": 1_000_000}
    )
    encode, numbers, topic = msgspec.json.Encoder().encode, random.Random(2), str(job["input"])
    trades = [load.trade(index, numbers) for index in range(1, min(count, _ENCODED) + 1)]
    ready = [(encode(one), one.account.encode()) for one in trades]
    began = time.monotonic()
    for index in range(count):
        ahead = began + index / rate - time.monotonic()
        if ahead > 0.001:
            producer.poll(0)
            time.sleep(ahead)
        value, key = ready[index % _ENCODED]
        sent.append(time.monotonic())
        producer.produce(topic, value, key, 0)
    producer.flush()


def receive(job: dict[str, object], count: int, came: list[float]) -> None:
    """Read committed outputs until all have come or none comes any more."""
    consumer = Consumer(
        {
            "bootstrap.servers": job["bootstrap"],
            "group.id": "bench-pace",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 20,
        }
    )
    consumer.assign([TopicPartition(str(job["output"]), 0, 0)])
    decode, last, first = msgspec.json.Decoder(load.Running).decode, time.monotonic(), 1
    while len(came) < count and time.monotonic() - last < GIVE_UP_SECONDS:
        messages = consumer.consume(1000, 0.002)
        if not messages:
            continue
        last = time.monotonic()
        for number in range(-len(came) % 100, len(messages) - first, 100):
            found = decode(messages[number + first].value() or b"").id
            wanted = f"t-{(len(came) + number) % _ENCODED + 1:09d}"
            if found != wanted:
                raise RuntimeError(f"output {len(came) + number} is that of {found}, not of {wanted}")
        came += [last] * (len(messages) - first)
        first = 0  # before the first trade there is the one that shows that the contender is live
    consumer.close()


def main() -> int:
    """Run both ends; 1 when outputs are missing."""
    job = json.loads(sys.argv[1])
    rate, count = int(job["rate"]), int(job["count"])
    sent: list[float] = []
    came: list[float] = []
    reader = threading.Thread(target=receive, args=(job, count, came))
    reader.start()
    send(job, rate, count, sent)
    reader.join()
    if len(came) < count:
        print(f"{count - len(came)} of {count} outputs did not come", file=sys.stderr)
        return 1
    behind = sent[-1] - sent[0] - count / rate
    if behind > 1:
        print(f"the sender could not keep up: {behind:.1f} s behind", file=sys.stderr)
        return 1
    warm = 5 * rate  # connections, first transactions, first compilations
    pairs = list(zip(sent, came, strict=True))[warm :: max(1, rate // 5_000)]
    print(json.dumps([round((end - begin) * 1000, 2) for begin, end in pairs]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
