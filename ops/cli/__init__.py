"""The command line: `statehold ...`. Needs the extra [cli]; nothing else in statehold imports it."""
