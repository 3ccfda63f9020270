"""The two ends of `latency`: sends at a steady rate, reads what comes out, prints the delays in ms as JSON.

Run as `python -m benchmarks.pace '{"bootstrap": ..., "input": ..., "output": ..., "rate": ..., "count": ...}'`.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks import load

GIVE_UP_SECONDS = 30.0


def send(job: dict[str, object], rate: int, count: int, sent: dict[str, float]) -> None:
    """Send `count` trades, ten times in each hundredth of a second's worth; note when each went."""
    producer = Producer({"bootstrap.servers": job["bootstrap"], "linger.ms": 0})
    encode, numbers, topic = msgspec.json.Encoder().encode, random.Random(2), str(job["input"])
    began = time.monotonic()
    for index in range(1, count + 1):
        ahead = began + index / rate - time.monotonic()
        if ahead > 0.001:
            producer.poll(0)
            time.sleep(ahead)
        one = load.trade(index, numbers)
        sent[one.id] = time.monotonic()
        producer.produce(topic, encode(one), one.account.encode(), 0)
    producer.flush()


def receive(job: dict[str, object], count: int, came: dict[str, float]) -> None:
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
    decode, last = msgspec.json.Decoder(load.Running).decode, time.monotonic()
    while len(came) < count and time.monotonic() - last < GIVE_UP_SECONDS:
        for message in consumer.consume(1000, 0.002):
            last = time.monotonic()
            one = decode(message.value() or b"")
            if one.id != "t-000000000":
                came[one.id] = last
    consumer.close()


def main() -> int:
    """Run both ends; 1 when outputs are missing."""
    job = json.loads(sys.argv[1])
    rate, count = int(job["rate"]), int(job["count"])
    sent: dict[str, float] = {}
    came: dict[str, float] = {}
    reader = threading.Thread(target=receive, args=(job, count, came))
    reader.start()
    send(job, rate, count, sent)
    reader.join()
    if len(came) < count:
        print(f"{count - len(came)} of {count} outputs did not come", file=sys.stderr)
        return 1
    warm = 5 * rate  # connections, first transactions, first compilations
    ids = list(sent)[warm:]
    print(json.dumps([round((came[one] - sent[one]) * 1000, 2) for one in ids]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
