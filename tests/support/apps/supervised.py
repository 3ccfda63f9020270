"""A supervisor whose processes are `member.py`: `supervised.py DIRECTORY N`; settings come from the environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from statehold.config import load
from statehold.errors import StateholdError
from statehold.ops.process.logs import configure_logging
from statehold.ops.supervisor.supervisor import SupervisorPlan, supervise

MEMBER = Path(__file__).with_name("member.py")


def main() -> int:
    settings = load(env=os.environ)
    configure_logging(settings.log)
    plan = SupervisorPlan("app:service", ["run", sys.argv[1]], sys.argv[2], program=(sys.executable, str(MEMBER)))
    try:
        return supervise(plan, settings)
    except StateholdError as error:
        print(error, file=sys.stderr)
        return 5


if __name__ == "__main__":
    sys.exit(main())
