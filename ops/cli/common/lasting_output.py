"""Standard output that outlasts its reader, so that a command ends with its own exit code after `| head`."""

from __future__ import annotations

import io
import os
import sys


class _Lasting(io.TextIOWrapper):
    """Discards the rest once its reader has ended."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            self._discard()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            self._discard()

    def _discard(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def install() -> None:
    """Replace standard output, unless a program has already; `cat` ends when its reader does."""
    stream = sys.stdout
    if sys.argv[1:2] != ["cat"] and isinstance(stream, io.TextIOWrapper) and not isinstance(stream, _Lasting):
        encoding, errors, lines = stream.encoding, stream.errors, stream.line_buffering
        sys.stdout = _Lasting(stream.detach(), encoding=encoding, errors=errors, line_buffering=lines)
