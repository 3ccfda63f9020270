"""(c) A consumer as one writes it by hand: confluent-kafka, json, a dict, a transaction every 100 ms."""

import json
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

job = json.loads(Path(sys.argv[1]).read_text())
consumer = Consumer(
    {
        "bootstrap.servers": job["bootstrap"],
        "group.id": job["group"],
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
)
producer = Producer({"bootstrap.servers": job["bootstrap"], "transactional.id": job["group"]})
producer.init_transactions()
consumer.subscribe([job["input"]])
state: dict[str, tuple[int, int]] = {}
done = 0
while done < job["records"]:
    messages = consumer.consume(1000, 0.05)
    if not messages:
        continue
    producer.begin_transaction()
    deadline = time.monotonic() + job["commit_seconds"]
    while True:
        for message in messages:
            if message.error():
                raise RuntimeError(message.error())
            trade = json.loads(message.value() or b"")
            account = trade["account"]
            amount = trade["quantity"] * trade["price"]
            total, count = state.get(account, (0, 0))
            total, count = total + (amount if trade["side"] == "BUY" else -amount), count + 1
            state[account] = (total, count)
            output = {"id": trade["id"], "account": account, "total": total, "count": count}
            while True:
                try:
                    producer.produce(job["output"], value=json.dumps(output), key=message.key())
                    break
                except BufferError:
                    producer.poll(0.01)
        done += len(messages)
        position = (messages[-1].offset() or 0) + 1
        if time.monotonic() >= deadline or done >= job["records"]:
            break
        messages = consumer.consume(1000, 0.05)
        while not messages and time.monotonic() < deadline:
            messages = consumer.consume(1000, 0.05)
        if not messages:
            break
    producer.send_offsets_to_transaction(
        [TopicPartition(job["input"], 0, position)], consumer.consumer_group_metadata()
    )
    producer.commit_transaction()
consumer.close()
