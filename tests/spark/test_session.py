"""The session of this machine: small, and of this interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


UNRESOLVED = """
import socket
socket.sethostname("no-such-host")
from statehold.snapshot.spark.io.session import SparkOptions, spark_session
with spark_session("unresolved", SparkOptions()) as spark:
    print("counted", spark.range(10).count())
"""


@pytest.mark.spark
@pytest.mark.root
@pytest.mark.slow
def test_a_session_starts_where_the_machines_own_name_does_not_resolve(python: str) -> None:
    if subprocess.run(["unshare", "--uts", "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this system makes no UTS namespaces")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_LOCAL_")}

    command = ["unshare", "--uts", python, "-c", UNRESOLVED]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False, timeout=120)

    assert "counted 10" in done.stdout, done.stderr[-2000:]


def interpreters(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Name the Python and the state format that a Python worker sees."""
    import pyarrow as pa

    from statehold.state.digest import table_digest

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"python": [sys.executable], "module": [table_digest.__module__]})


@pytest.mark.spark
def test_python_workers_run_this_interpreter_with_statehold(spark: SparkSession, python: str) -> None:
    rows = spark.range(4, numPartitions=2).mapInArrow(interpreters, "python string, module string").collect()

    assert {(row.python, row.module) for row in rows} == {(python, "statehold.state.digest")}
