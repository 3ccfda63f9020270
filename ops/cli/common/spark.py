"""Spark for the commands that need it, which the extra `spark` installs."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statehold.errors import StartError

if TYPE_CHECKING:
    from statehold.snapshot.spark.io.session import SparkOptions
    from statehold.snapshot.spark.io.source import Session

#: of a command whose executors run the service's code
SparkMaster = Annotated[
    str | None,
    typer.Option(
        "--spark-master",
        metavar="URL",
        help="Give each partition to an executor of Spark: local[N], spark://HOST:PORT, ..., or 'submit' for "
        "spark-submit's configuration. Executors import MODULE:SERVICE, which --py-files or --archives of spark-submit "
        "bring there. [default: in this process, a partition at a time]",
    ),
]
SparkMemory = Annotated[str, typer.Option("--spark-memory", metavar="SIZE", help="Set the heap of a local Spark.")]


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


@contextmanager
def importing_session(name: str, master: str, memory: str) -> Iterator[Session]:
    """Open a session at this --spark-master, whose local Python workers import from the current directory, too.

    :raises StartError, JavaMissing: as `spark_options`. :raises JobFailed: Spark did not start.
    """
    options = spark_options("--spark-master needs", master, memory)
    from statehold.snapshot.spark.io.session import spark_session

    if options.local:
        path = filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH", "")))
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
    with spark_session(name, options) as spark:
        yield spark
