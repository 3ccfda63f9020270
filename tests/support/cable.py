"""`cable.py DEVICE DEVICE LOSS DELAY`: a network cable in user space, lossy or slow; it ends with its stdin.

Raw packet sockets with the kernel's own header before each frame (PACKET_VNET_HDR), which passes on checksums and
segments that the kernel has not computed yet. It imports only the standard library, because it is a process of its own.
"""

from __future__ import annotations

import heapq
import random
import selectors
import socket
import sys
import time

_SOL_PACKET, _PACKET_VNET_HDR, _ETH_P_ALL = 263, 15, 3
_LARGEST = 70_000


def open_device(name: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    made.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    made.bind((name, 0))
    made.setblocking(False)
    return made


def main(first: str, second: str, loss: float, delay: float) -> None:
    ends = [open_device(first), open_device(second)]
    late: list[tuple[float, int, int, bytes]] = []
    count = 0
    with selectors.DefaultSelector() as selector:
        for number, end in enumerate(ends):
            selector.register(end, selectors.EVENT_READ, 1 - number)
        selector.register(sys.stdin, selectors.EVENT_READ, -1)
        while True:
            wait = max(0.0, late[0][0] - time.monotonic()) if late else None
            for key, _ in selector.select(wait):
                if key.data < 0:
                    return
                for frame in received(ends[1 - key.data]):
                    if random.random() >= loss:
                        count += 1
                        heapq.heappush(late, (time.monotonic() + delay, count, key.data, frame))
            while late and late[0][0] <= time.monotonic():
                _, _, to, frame = heapq.heappop(late)
                try:
                    ends[to].send(frame)
                except OSError:  # the device is full or down; a real cable would lose the frame, too
                    continue


def received(end: socket.socket) -> list[bytes]:
    """Return the frames that arrived at this end, without those that the cable sent from it."""
    frames: list[bytes] = []
    while True:
        try:
            frame, (_, _, kind, *_rest) = end.recvfrom(_LARGEST)
        except OSError:
            return frames
        if kind != socket.PACKET_OUTGOING:
            frames.append(frame)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
