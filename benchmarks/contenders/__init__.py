"""One program per contender, each run in a process and an environment of its own: `python FILE JOB.json`."""
