"""Runs one service as several processes of this machine: `statehold run --processes N`.

The supervisor handles no records and imports none of your code. It starts each process as a new `statehold run`. The
door is `supervisor.supervise`; a process that it starts enters by `member`.
"""
