"""Answers that a broker gives in rare states, for `Proxy.lie`."""

from __future__ import annotations

import struct

from tests.support.proxy import ApiKey, Request

#: requests to a coordinator -> the first version whose answers have tagged fields; each begins with throttle and code
_TAGGED = {ApiKey.INIT_PRODUCER_ID: 2, ApiKey.ADD_OFFSETS_TO_TXN: 3, ApiKey.END_TXN: 3}
COORDINATOR_LOAD_IN_PROGRESS = 14


def no_brokers(request: Request, answer: bytes) -> bytes | None:
    """Return metadata without a broker: all are fenced just after they resume."""
    if request.api_key != ApiKey.METADATA:
        return None
    assert request.version >= 9, "older ones have no tagged fields"
    count, at = _varint(answer, 5)
    begin = 5
    for _ in range(count - 1):
        at = _text(answer, at + 4)  # after the node's number: host
        at = _text(answer, at + 4)  # after the port: rack
        at = _tags(answer, at)
    return answer[:begin] + b"\x01" + answer[at:]


def still_loading(request: Request, answer: bytes) -> bytes | None:
    """Return the answer of a coordinator that is still reading its log."""
    if request.api_key not in _TAGGED:
        return None
    at = 5 if request.version >= _TAGGED[ApiKey(request.api_key)] else 4
    return answer[:at] + struct.pack(">h", COORDINATOR_LOAD_IN_PROGRESS) + answer[at + 2 :]


def has_assignment(request: Request, answer: bytes) -> bool:
    """Return whether the answer to a heartbeat of the consumer protocol carries an assignment."""
    if request.api_key != ApiKey.CONSUMER_GROUP_HEARTBEAT:
        return False
    at = _text(answer, _text(answer, 1 + 4 + 2))  # tags, throttle and code; then the error's text and the member's id
    return answer[at + 4 + 4] == 1  # epoch and interval


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def _text(data: bytes, at: int) -> int:
    """Return the end of a compact string; its length is encoded plus one, and 0 is null."""
    length, at = _varint(data, at)
    return at + max(0, length - 1)


def _tags(data: bytes, at: int) -> int:
    count, at = _varint(data, at)
    for _ in range(count):
        _, at = _varint(data, at)
        size, at = _varint(data, at)
        at += size
    return at
