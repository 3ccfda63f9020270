"""`holdfast compact` as a job for spark-submit, which decides on master, memory and packages; see docs/cli.md."""

from __future__ import annotations

import sys

from holdfast.ops.cli.entry import main

if __name__ == "__main__":
    sys.argv[1:1] = ["compact", "--spark-master", "submit"]
    main()
