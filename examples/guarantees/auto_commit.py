"""The client commits fetched records every 100 ms, processed or not. A crash loses records."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition

from examples.guarantees.scene import Scene, batches, scene


def main(here: Scene) -> None:
    consumer = here.consumer(**{"enable.auto.commit": True, "auto.commit.interval.ms": 100})
    producer = Producer({"bootstrap.servers": here.servers})
    for batch in batches(consumer):
        for number, value in enumerate(batch.values):
            if number == len(batch.values) // 2:
                let_it_commit(here, consumer, batch.end)
                here.point("in the middle of a batch")
            producer.produce(here.output, value)
            producer.flush()
    consumer.close()


def let_it_commit(here: Scene, consumer: Consumer, position: int) -> None:
    """Wait until the client's thread has committed the fetched records, like a slow handler."""
    while consumer.committed([TopicPartition(here.input, 0)], 30)[0].offset < position:
        pass


if __name__ == "__main__":
    main(scene())
