"""(d) The same by hand with everything that is known to help: typed decoding, positional calls, tuned clients.

It also writes the changed accounts of each transaction, as one delta, so that its state could be restored.
"""

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, Message, Producer, TopicPartition

job = json.loads(Path(sys.argv[1]).read_text())


class Trade(msgspec.Struct, frozen=True, gc=False):
    id: str
    account: str
    side: str
    quantity: int
    price: int


class Running(msgspec.Struct, frozen=True, gc=False):
    id: str
    account: str
    total: int
    count: int


consumer = Consumer(
    {
        "bootstrap.servers": job["bootstrap"],
        "group.id": job["group"],
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "fetch.queue.backoff.ms": 5,
        **job.get("consumer", {}),
    }
)
producer = Producer(
    {
        "bootstrap.servers": job["bootstrap"],
        "transactional.id": job["group"],
        "retry.backoff.ms": 2,
        "linger.ms": 5,
        "batch.size": 1_000_000,
        "batch.num.messages": 100_000,
        "queue.buffering.max.messages": 1_000_000,
        "delivery.report.only.error": True,
        **job.get("producer", {}),
    }
)
producer.init_transactions()
consumer.subscribe([job["input"]])
gc.freeze()
gc.disable()
decode: Callable[[Any], Trade] = msgspec.json.Decoder(Trade).decode
encode, pack = msgspec.json.Encoder().encode, msgspec.msgpack.Encoder().encode
state: dict[str, tuple[int, int]] = {}
get, produce, output, value_of, key_of, error_of = (
    state.get,
    producer.produce,
    job["output"],
    Message.value,
    Message.key,
    Message.error,
)
done, none, cap = 0, (0, 0), job.get("transaction_records", 1_000_000)
while done < job["records"]:
    messages = consumer.consume(1000, 0.01)
    if not messages:
        continue
    producer.begin_transaction()
    deadline, dirty, started = time.monotonic() + job["commit_seconds"], set(), done
    while True:
        if any(map(error_of, messages)):
            raise RuntimeError([str(e) for e in map(error_of, messages) if e])
        for key, trade in zip(map(key_of, messages), map(decode, map(value_of, messages)), strict=True):
            account = trade.account
            total, count = get(account, none)
            amount = trade.quantity * trade.price
            total, count = total + amount if trade.side == "BUY" else total - amount, count + 1
            state[account] = (total, count)
            dirty.add(account)
            produce(output, encode(Running(trade.id, account, total, count)), key, 0)
        done += len(messages)
        position = (messages[-1].offset() or 0) + 1
        if time.monotonic() >= deadline or done >= job["records"] or done - started >= cap:
            break
        messages = consumer.consume(1000, max(0.0, min(0.01, deadline - time.monotonic())))
        while not messages and time.monotonic() < deadline:
            messages = consumer.consume(1000, 0.01)
        if not messages:
            break
    produce(job["changelog"], pack([(account, state[account]) for account in dirty]), None, 0)
    producer.send_offsets_to_transaction(
        [TopicPartition(job["input"], 0, position)], consumer.consumer_group_metadata()
    )
    producer.commit_transaction()
consumer.close()
