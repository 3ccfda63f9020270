"""Fill the cache with Kafka's jars and the archive of their classes; report what takes long."""

from __future__ import annotations

import sys

from statehold.dev.cluster import archive_classes
from statehold.dev.errors import DevError
from statehold.dev.jars import tools_class_path


def report(line: str) -> None:
    """Print a line for the person who runs the script."""
    sys.stderr.write(f"bootstrap: {line}\n")


def main() -> None:
    """Fetch what is missing; a second run does nothing."""
    try:
        archive_classes(report=report)
        tools_class_path(report=report)
    except DevError as error:
        sys.exit(f"bootstrap: {error}")


if __name__ == "__main__":
    main()
