"""Runs jobs of examples/lakehouse one after the other in one Java; each line of standard input is a list in JSON.

`["nightly", ARGUMENT...]` and `["streaming", ARGUMENT...]` run the job, `["rows", FORM, DIRECTORY, TABLE]` reads the
lake. Each is answered by `did ` and JSON: the job's error, or the rows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from examples.lakehouse import nightly, streaming
from examples.lakehouse.lake import Lake

JOBS = {"nightly": nightly.main, "streaming": streaming.main}


def did(word: str, *arguments: str) -> Any:
    if word == "rows":
        form, directory, table = arguments
        lake = Lake(form, Path(directory))
        spark = lake.session("rows", "local[2]")
        return [row.asDict(recursive=True) for row in spark.table(lake.table(table)).collect()]
    try:
        JOBS[word](arguments)
    except SystemExit as error:
        return error.code
    return ""


if __name__ == "__main__":
    for line in sys.stdin:
        print("did", json.dumps(did(*json.loads(line)), default=str), flush=True)
