"""Commits offsets after the broker has the outputs. A crash in between duplicates the outputs."""

from __future__ import annotations

from confluent_kafka import Producer, TopicPartition

from examples.guarantees.scene import Scene, batches, scene


def main(here: Scene) -> None:
    consumer = here.consumer(**{"enable.auto.commit": False})
    producer = Producer({"bootstrap.servers": here.servers, "enable.idempotence": True})
    for batch in batches(consumer):
        for value in batch.values:
            producer.produce(here.output, value)
        producer.flush()
        here.point("between the outputs and the offset")
        consumer.commit(offsets=[TopicPartition(here.input, 0, batch.end)], asynchronous=False)
    consumer.close()


if __name__ == "__main__":
    main(scene())
