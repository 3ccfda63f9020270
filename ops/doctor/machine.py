"""Checks this machine and its installed software."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import ClassVar, Final

from statehold.kafka.survey.librdkafka import version
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.report import Finding, FindingsOf

OLDEST: Final = (2, 16, 0)
#: first and last release of a range, and its fault
BAD: Final = (
    ((2, 10, 0), (2, 10, 0), "loses messages (librdkafka issue 5088)"),
    ((1, 0, 0), (2, 4, 99), "may lose messages of a transaction (librdkafka issues 4438, 4736)"),
)
#: file descriptors: of the process, of each partition's producer, and of each of its connections (measured)
_PROCESS, _PRODUCER, _CONNECTION = 256, 8, 3


class ClientLibrary:
    name: ClassVar = "client-library"
    looks_at: ClassVar = "the release of librdkafka, and ranges that are known to be bad"
    fails: ClassVar = f"it is in such a range, or older than {'.'.join(map(str, OLDEST))}"
    warns: ClassVar = "-"

    def __init__(self, found: tuple[int, int, int] | None = None) -> None:
        self._version = found or version()

    def look(self, case: Case) -> Iterator[Finding]:
        seen, now = FindingsOf(self), self._version
        shown, fix = ".".join(map(str, now)), "pip install --upgrade 'confluent-kafka>=2.16.1,<3'"
        for low, high, fault in BAD:
            if low <= now <= high:
                yield seen.failed("librdkafka", f"{shown} {fault}", fix)
                return
        if now < OLDEST:
            yield seen.failed("librdkafka", f"{shown} is older than what statehold was proven with", fix)


class FileLimit:
    name: ClassVar = "file-limit"
    looks_at: ClassVar = "RLIMIT_NOFILE against what one process needs if it gets every partition"
    fails: ClassVar = "-"
    warns: ClassVar = "too few: a takeover of everything by one instance would fail"

    def look(self, case: Case) -> Iterator[Finding]:
        partitions, brokers = len(case.topic(case.names.input).partitions), len(case.brokers)
        needed = _PROCESS + partitions * (_PRODUCER + _CONNECTION * brokers)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < needed:
            yield FindingsOf(self).warned(
                "RLIMIT_NOFILE",
                f"{soft} files may be open, {partitions} partitions with {brokers} brokers need {needed}",
                f"ulimit -n {needed}, or LimitNOFILE={needed} in the unit",
            )


CHECKS = (ClientLibrary, FileLimit)
