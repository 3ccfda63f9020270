"""A service that asks for each record; the other system rejects what the file ASKING_REJECTS names.

It notes each request in the file ASKING_NOTES, and does not answer one that begins with `hang` while that file has no
line `answer`.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from statehold import Call, CallResult, Handler, Output, Record, Service
from statehold.errors import CallRejected


async def ask(name: str, text: str) -> str:
    """Another system."""
    if notes := os.environ.get("ASKING_NOTES"):
        with Path(notes).open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")
        if text.startswith("hang") and "answer" not in Path(notes).read_text(encoding="utf-8").split():
            await asyncio.Event().wait()
    if text in Path(os.environ["ASKING_REJECTS"]).read_text(encoding="utf-8").split():
        raise CallRejected(f"{text} is unknown")
    return text.upper()


class Asking(Handler[str]):
    answer = Call(ask, argument=str, result=str)
    answers = Output("asking-answers", value=str)

    def on_record(self, record: Record[str]) -> None:
        self.answer(record.value)

    @answer.on_result
    def answered(self, done: CallResult[str, str]) -> None:
        self.answers.send(f"{done.id} {done.result}")


service = Service("asking", input="asking-questions", handler=Asking)
