"""Reads the state in a service's snapshots, as a new owner of its partitions would."""

from time import monotonic
from typing import Any

from examples.proof import Held
from statehold.api.handler import Handler
from statehold.bound.attributes import bound_tables
from statehold.common.names import Names
from statehold.config import KafkaSettings, Settings
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.reader import KafkaReader
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.restore.restore import restore
from statehold.state import digest
from statehold.state.state import State


def held_by(servers: str, names: Names, handler: type[Handler[Any]]) -> dict[int, Held]:
    """Restore every partition's state and its recorded digest, without joining the group, commits or fences.

    Raises ValueError if a state is older than the last commit record, because it would need a replay.
    """
    settings = Settings(kafka=KafkaSettings(bootstrap_servers=servers))
    admin = Admin(settings, names.group)
    facts = admin.describe([*names.inputs, names.changelog, names.snapshot])
    ids = {name: fact.id for name, fact in facts.items() if fact is not None}
    trades = facts[names.input]
    partitions = trades.partitions if trades is not None else 0
    reader = KafkaReader(settings, f"{names.group}-held", admin, lambda: False, monotonic)
    try:
        return {
            partition: _held(reader, Place(names, partition, partitions, ids), handler)
            for partition in range(partitions)
        }
    finally:
        reader.close()


def _held(reader: KafkaReader, place: Place, handler: type[Handler[Any]]) -> Held:
    def new_state() -> State:
        return State(table.fresh() for table in bound_tables(handler, traced=False))

    restored = restore(reader, place, new_state, lambda _event, _fields: None, monotonic)
    end = restored.commit_record.position(place.names.input)
    if restored.position != end:
        raise ValueError(f"partition {place.partition}: state of {restored.position}, last mark at {end}")
    state = {name: dict(table.stored) for name, table in restored.state.tables.items()}
    return Held(state, digest.show(restored.commit_record.digest))
