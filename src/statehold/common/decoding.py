"""The errors that msgspec raises for bytes that it cannot decode."""

from __future__ import annotations

from typing import Final

import msgspec

#: RecursionError is for bytes that are nested too deep
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
