"""An executor's Python makes Arrow arrays without importing pandas, which takes a second of a core."""

from __future__ import annotations

import subprocess
import sys

import pytest

ARRAYS = """
import sys
import numpy as np
import pyarrow as pa
{before}
arrays = [pa.array(["a", None], pa.string()), pa.array([b"a"], pa.binary()), pa.array(np.arange(3))]
print("pandas" in sys.modules, sum(map(len, arrays)))
import pandas
print(pandas.Series([1]).sum())
"""
FORGET = "from statehold.snapshot.spark.io.scan import forget_pandas; forget_pandas()"


@pytest.mark.parametrize(("before", "imported"), [("", "True"), (FORGET, "False")], ids=["before", "after"])
def test_pyarrow_imports_pandas_unless_it_is_forgotten(before: str, imported: str) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    done = subprocess.run(
        [sys.executable, "-c", ARRAYS.format(before=before)], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.split() == [imported, "6", "1"]
