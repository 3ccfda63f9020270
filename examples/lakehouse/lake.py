"""A Spark session with Delta or Iceberg, and tables that get the columns which a service's table has gained."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from examples.lakehouse.evolution import TypeChanged, added
from statehold.spark import StateholdSource

#: for PySpark 4.0: a jar names the version of Spark that it is for
PACKAGES = {
    "delta": "io.delta:delta-spark_2.13:4.0.0",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.1",
}
EXTENSIONS = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}


class Lake(NamedTuple):
    """Tables of one format in a directory."""

    form: str
    directory: Path

    def session(self, name: str, master: str) -> SparkSession:
        """Return a session with the format's jar and `statehold`. `submit`: spark-submit sets the master."""
        builder = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")
        if master != "submit":
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            builder = builder.master(master).config("spark.jars.packages", PACKAGES[self.form])
            builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.ui.enabled", "false")
        builder = builder.config("spark.sql.extensions", EXTENSIONS[self.form])
        if self.form == "delta":
            catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
            builder = builder.config("spark.sql.catalog.spark_catalog", catalog)
            builder = builder.config("spark.databricks.delta.snapshotPartitions", "2")  # 50 tasks, for large tables
        else:
            builder = (
                builder.config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
                .config("spark.sql.catalog.lake.type", "hadoop")
                .config("spark.sql.catalog.lake.warehouse", str(self.directory.resolve()))
            )
        spark = builder.getOrCreate()
        spark.dataSource.register(StateholdSource)
        return spark

    def table(self, name: str) -> str:
        """Return a table's name in SQL."""
        if self.form == "delta":
            return f"delta.`{self.directory.resolve()}/{name}`"
        return f"lake.statehold.`{name}`"

    def fitted(self, frame: DataFrame, name: str, partitioned_by: str = "") -> DataFrame:
        """Create the table or add the columns that it lacks; return the frame with exactly the table's columns.

        :raises TypeChanged: a column has another type.
        """
        spark, table = frame.sparkSession, self.table(name)
        columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in frame.schema)
        by = f"PARTITIONED BY ({partitioned_by})" if partitioned_by else ""
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING {self.form} {by}")
        try:
            new = list(added(self._schema(spark, table), frame.schema))
        except TypeChanged as error:
            raise TypeChanged(f"{table}: {error}") from None
        if new:
            more = ", ".join(f"{each.path} {each.type}" for each in new)
            spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({more})")
        return frame.to(self._schema(spark, table))

    @staticmethod
    def _schema(spark: SparkSession, table: str) -> StructType:
        return spark.table(table).schema


def options(description: str) -> argparse.ArgumentParser:
    """Return the options that the jobs share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("service", help="MODULE:SERVICE")
    parser.add_argument("table", help="the table's stored name")
    parser.add_argument("--lake", choices=sorted(PACKAGES), default="delta", help="the format of the lake's tables")
    parser.add_argument("--to", type=Path, default=Path("lake"), metavar="DIRECTORY", help="where the lake is")
    parser.add_argument("--into", metavar="NAME", help="the lake's table")
    parser.add_argument("--spark-master", default="local[2]", help="or 'submit' for that of spark-submit")
    return parser
