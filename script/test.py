"""Choose the tier and run pytest once, so that its closing line is the last one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: most tests wait for a broker most of the time
SIDE_BY_SIDE = ["-n", "3", "--dist", "loadfile"]
TIERS = {
    "--fast": ["-m", "not kafka and not root and not spark and not slow and not long"],
    "--long": ["--run-long"],
}


def main() -> None:
    """Replace this process by pytest."""
    arguments = sys.argv[1:]
    tier = next((each for each in arguments if each in TIERS), None)
    rest = [each for each in arguments if each not in TIERS]
    os.chdir(ROOT)
    command = [sys.executable, "-m", "pytest", *TIERS.get(tier or "", ["-m", "not long", *SIDE_BY_SIDE]), *rest]
    os.execv(sys.executable, command)  # noqa: S606 - the environment's own interpreter


if __name__ == "__main__":
    main()
