"""Outputs and offset are one Kafka transaction: a death undoes both or neither. This is what statehold builds on."""

from __future__ import annotations

from confluent_kafka import Producer, TopicPartition

from examples.guarantees.scene import Scene, batches, scene


def main(here: Scene) -> None:
    producer = Producer({"bootstrap.servers": here.servers, "transactional.id": f"{here.group}-0"})
    # Ends the transaction that a dead predecessor left open. Only after it is the group's offset the truth.
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
