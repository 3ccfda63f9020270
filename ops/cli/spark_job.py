"""A job for spark-submit, which sets master, memory and packages: `statehold compact`, or with the name of another
command that runs on Spark (`snapshot export`, `state migrate`, `rehearse`, `rebuild`) before its options, that one
(docs/reference/cli.md).
"""

from __future__ import annotations

import os
import sys

# Python puts a script's own folder first on the path, where `http` would hide the standard library's.
_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [each for each in sys.path if os.path.abspath(each) != _HERE]

from statehold.ops.cli.entry import main  # noqa: E402

if __name__ == "__main__":
    if sys.argv[1:2] not in (["snapshot"], ["state"], ["rehearse"], ["rebuild"], ["compact"]):
        sys.argv.insert(1, "compact")
    sys.argv += ["--spark-master", "submit"]
    main()
