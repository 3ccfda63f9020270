"""Outputs and offset are one Kafka transaction: a crash rolls back both or neither. statehold builds on this."""

from __future__ import annotations

from confluent_kafka import Producer, TopicPartition

from examples.guarantees.scene import Scene, batches, scene


def main(here: Scene) -> None:
    producer = Producer({"bootstrap.servers": here.servers, "transactional.id": f"{here.group}-0"})
    # Abort the open transaction of a dead predecessor, because the group's offset is final only afterwards.
    producer.init_transactions(30)
    consumer = here.consumer(**{"enable.auto.commit": False})
    for batch in batches(consumer):
        producer.begin_transaction()
        for value in batch.values:
            producer.produce(here.output, value)
        position = TopicPartition(here.input, 0, batch.end)
        producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), 30)
        here.point("before the commit")
        producer.commit_transaction(30)
        here.point("after the commit")
    consumer.close()


if __name__ == "__main__":
    main(scene())
