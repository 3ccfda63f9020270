"""Choose the tier and run pytest once, so that pytest's closing line is the last one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Tests run in parallel, because most wait for a broker; tests/side_by_side.py decides which files share a process.
#: The time limit of a hung test ends its process, and the run then ends too: a new process might wait for work forever.
SIDE_BY_SIDE = ["-n", "4", "--dist", "loadfile", "--max-worker-restart=0"]
TIERS = {
    "--fast": ["-m", "not kafka and not root and not spark and not slow and not long", "-n", "2", *SIDE_BY_SIDE[2:]],
    "--long": ["--run-long"],
}
#: Compiled code, because otherwise hundreds of processes compile their imports under PYTHONDONTWRITEBYTECODE.
COMPILED = ROOT / "build" / "compiled"


def main() -> int:
    """Run pytest, its files in a directory whose name is short enough for sockets, and remove that."""
    arguments = sys.argv[1:]
    tier = next((each for each in arguments if each in TIERS), None)
    rest = [each for each in arguments if each not in TIERS]
    os.chdir(ROOT)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(COMPILED)
    with tempfile.TemporaryDirectory(prefix="sh-") as directory:
        options = [*TIERS.get(tier or "", ["-m", "not long", *SIDE_BY_SIDE]), f"--basetemp={directory}/t"]
        process = subprocess.Popen([sys.executable, "-m", "pytest", *options, *rest])
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            while True:
                with suppress(KeyboardInterrupt):  # pytest also gets it, and cleans up
                    return process.wait()
        finally:  # the compiled code of modules that the tests wrote
            shutil.rmtree(COMPILED.joinpath(*Path(directory).parts[1:]), ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
