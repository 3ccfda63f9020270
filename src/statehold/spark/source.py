"""The data source `statehold` of PySpark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from statehold.errors import UsageError
from statehold.spark.opening import NamedService
from statehold.spark.options import SourceOptions, parse
from statehold.spark.pushdown import Pushed
from statehold.spark.records import CommitRecords, DeadLetterRecords, OutputRecords, StoredInputs
from statehold.spark.relations import ChangesTable, Points, Relation, StateTable, tasks_of
from statehold.spark.stream import ChangesStream

_RELATIONS: Final[Mapping[str, Callable[[NamedService], Relation]]] = {
    "state": StateTable,
    "points": Points,
    "changes": ChangesTable,
    "commits": CommitRecords,
    "inputs": StoredInputs,
    "outputs": OutputRecords,
    "dead_letters": DeadLetterRecords,
}


class StateholdSource(DataSource):
    """Reads the state of a service and what it has written, at a fixed point.

    `spark.dataSource.register(StateholdSource)`, then
    `spark.read.format("statehold").options(service="order_totals.app:service", table="totals").load()`. `load()`
    chooses the transactions: all actions on the DataFrame see the same state. The columns are those of
    `statehold snapshot export`; `.schema("key string, amount bigint")` reads some of them only. Spark raises an
    `AnalysisException` with the text of the command line if the point, the table or the types are wrong.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = parse(options)
        self._relation = relation_of(self._options)

    @classmethod
    def name(cls) -> str:
        return "statehold"

    def schema(self) -> spark.StructType:
        return self._relation.schema

    def reader(self, schema: spark.StructType) -> DataSourceReader:
        kind = FilteringReader if self._options.pushdown else TableReader
        return kind(self._relation, checked(schema, self._relation.schema))

    def streamReader(self, schema: spark.StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's name
        if not isinstance(self._relation, ChangesTable):
            raise UsageError(f"mode={self._options.mode}: a stream reads mode=changes")
        if self._options.backup:
            raise UsageError("a backup does not change: read it with spark.read instead of spark.readStream")
        return ChangesStream(self._options, self._relation, checked(schema, self._relation.schema))


def relation_of(options: SourceOptions) -> Relation:
    """Return what the options name, at the transactions that exist now. Blocks; raises the errors of commands."""
    return _RELATIONS[options.mode](NamedService(options))


def checked(wanted: spark.StructType, known: spark.StructType) -> spark.StructType:
    """Return the schema that the user asks for. :raises UsageError: a column does not exist, or has another type."""
    types = {field.name: field.dataType for field in known}
    for field in wanted:
        if field.name not in types:
            raise UsageError(f"there is no column {field.name!r}; there are {', '.join(types)}")
        if field.dataType.simpleString() != types[field.name].simpleString():
            raise UsageError(
                f"column {field.name!r} is {types[field.name].simpleString()}, not {field.dataType.simpleString()}"
            )
    return wanted


class TableReader(DataSourceReader):
    """Reads the chosen columns of a relation. PySpark pickles it for the tasks."""

    def __init__(self, relation: Relation, schema: spark.StructType) -> None:
        self._relation, self._schema = relation, schema
        self._pushed = Pushed(relation.key_type)

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in self._relation.tasks if self._pushed.partition.holds(task.partition)]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        for task in tasks_of(partition):
            yield from self._relation.read(task, self._schema, self._pushed)


class FilteringReader(TableReader):
    """Also takes filters. A class of its own, because PySpark rejects it where the session does not push filters."""

    def pushFilters(self, filters: Sequence[Any]) -> Iterable[Any]:  # noqa: N802 - PySpark's name
        """Use filters of the columns `partition` and `key` (PySpark 4.1 and later); Spark applies all of them again."""
        self._pushed.take(filters)
        return filters
