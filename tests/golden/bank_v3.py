"""The third release of the service of `bank_v1`: as the second, and it takes commands. Never change it."""

from __future__ import annotations

from tests.golden import bank_v2

from statehold import Record


class Bank(bank_v2.Bank):
    """A command leaves a note with everything it was given."""

    def on_command(self, command: str, record: Record[bytes]) -> None:
        noted = f"{command} {record.value.decode()} {record.topic}@{record.offset} {record.timestamp}"
        self.notes[command.encode()] = noted
        self.answers.send(len(self.notes), key=command)
