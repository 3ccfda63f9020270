"""`python -m statehold`: the command `statehold`."""

from __future__ import annotations

from statehold.ops.cli.entry import main

if __name__ == "__main__":
    main()
