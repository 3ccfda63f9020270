"""A job for spark-submit, which decides on master, memory and packages: `holdfast compact`, or with the name of another
command that runs on Spark (`snapshot export`, `state migrate`) before its options that one; see docs/cli.md."""

from __future__ import annotations

import sys

from holdfast.ops.cli.entry import main

if __name__ == "__main__":
    if sys.argv[1:2] not in (["snapshot"], ["state"], ["compact"]):
        sys.argv.insert(1, "compact")
    sys.argv += ["--spark-master", "submit"]
    main()
