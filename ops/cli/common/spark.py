"""Spark for the commands that need it, which the extra `spark` installs."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from statehold.errors import StartError

if TYPE_CHECKING:
    from statehold.snapshot.spark.io.session import SparkOptions


def spark_options(what: str, master: str, memory: str, *, brief: bool = False) -> SparkOptions:
    """Return the options of a session at this --spark-master; `what` needs it.

    :raises StartError: PySpark is not installed. :raises JavaMissing: a local session finds no Java that runs Spark.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise StartError(f"{what} an extra: pip install 'statehold[spark]', and Java 17")
    from statehold.dev.java import find_spark_java
    from statehold.snapshot.spark.io.session import SparkOptions

    if master.startswith("local"):
        find_spark_java()
    return SparkOptions(None if master == "submit" else master, memory, brief)
