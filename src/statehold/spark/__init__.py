"""The state of a service as Spark tables: `spark.read.format("statehold")`, `spark.readStream`, and views for SQL.

Needs `pip install 'statehold[spark]'`: PySpark 4 and Java 17.
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("pyspark") is None:
    raise ImportError("Spark tables need an extra: pip install 'statehold[spark]', and Java 17")

from statehold.spark.source import StateholdSource
from statehold.spark.views import views

__all__ = ["StateholdSource", "views"]
