"""Spark sessions: a small one on this machine, or the one that spark-submit has configured.

`SparkOptions.master` selects one of two cases:

* `local[...]`: this module sets everything. Executors are threads of one JVM, and its Python workers run this
  interpreter with its installed packages, including editable installs.
* any other value (`spark://...`, `yarn`, `k8s://...`, or None under spark-submit): the cluster sets memory and the
  executors' Python (`--archives` of a packed environment, `PYSPARK_PYTHON`). This module sets only what affects a
  query's result: time zone, shuffle partitions, Arrow.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from statehold.snapshot.spark.io.source import failed_job

LOCAL = "local[2]"
_OF_EVERY_SESSION = {
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}


@dataclass(frozen=True)
class SparkOptions:
    """Options of a session; `memory` and `brief` are those of one on this machine.

    `memory` is the heap of its Java. `brief`: Java only schedules and moves bytes, so a compiler that optimizes would
    cost more time than it saves (1.2 of 17 s).
    """

    master: str | None = LOCAL
    memory: str = "1g"
    brief: bool = False

    @property
    def local(self) -> bool:
        """True if this process starts the session's JVM on this machine."""
        return self.master is not None and self.master.startswith("local")


@contextmanager
def spark_session(name: str, options: SparkOptions) -> Iterator[SparkSession]:
    """Open a session called `name` and stop it at the end. Blocks for about 3 s; one session per process at a time.

    Scratch files (shuffles, spills) are in a temporary folder under $TMPDIR, which is removed at the end.

    :raises JobFailed: Spark did not start, or failed outside of a job.
    """
    with tempfile.TemporaryDirectory(prefix="statehold-spark-") as scratch:
        session = None
        try:
            session = _open(name, options, scratch)
            yield session
        except (PySparkException, Py4JError) as error:
            raise failed_job(error) from error
        finally:
            if session is not None:
                with suppress(PySparkException, Py4JError):  # its JVM may have been killed
                    session.stop()


class Tasks:
    """Counts the finished tasks and all tasks of a session's started stages. Any thread."""

    def __init__(self, spark: SparkSession) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        #: Stage -> finished tasks, all tasks.
        self._stages: dict[int, tuple[int, int]] = {}

    def __call__(self) -> tuple[int, int]:
        active = set(self._tracker.getActiveStageIds())
        for stage in active | {stage for stage, (done, total) in self._stages.items() if done < total}:
            info = self._tracker.getStageInfo(stage)
            if info is not None:
                self._stages[stage] = info.numCompletedTasks, info.numTasks
        counts = list(self._stages.values())
        return sum(done for done, _ in counts), sum(total for _, total in counts)


def _open(name: str, options: SparkOptions, scratch: str) -> SparkSession:
    # Of later releases, at the first mapInArrow, which needs pandas and hands it no data.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    chosen = _OF_EVERY_SESSION
    if options.local:
        chosen = chosen | _of_this_machine(options, scratch)
        # Spark reads this variable when the session starts; only spark-submit reads spark.pyspark.python.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        # Without this address Spark resolves the machine's name, and fails if that does not resolve.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name)
    if options.master is not None:
        builder = builder.master(options.master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _of_this_machine(options: SparkOptions, scratch: str) -> dict[str, str]:
    return {
        "spark.driver.memory": options.memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:-UsePerfData" + " -XX:TieredStopAtLevel=1" * options.brief,
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # At ERROR Spark prints the Java stack of each failed task; the error that is raised has the cause.
        "spark.log.level": "OFF",
    }
