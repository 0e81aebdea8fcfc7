"""`python -m tests.federation.cable ONE OTHER DELAY LOSS`: two network interfaces, joined by a bad cable.

Each frame arrives DELAY seconds later, but for a share LOSS, which never does. It ends with its standard input,
and says how many frames it carried and lost. The kernel's netem does the same, where there is one.
"""

import fcntl
import json
import os
import random
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
FRAME = 1 << 16  # bytes at most
STDIN = 0


def interface(name: str) -> int:
    """A new interface of this machine, whose frames are read and written here."""
    handle = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return handle


def carry(one: int, other: int, delay: float, loss: float) -> dict[str, int]:
    """Frames both ways, until the standard input ends."""
    far = {one: other, other: one}
    flying: deque[tuple[float, int, bytes]] = deque()  # in the order of their arrival
    chance, carried, lost = random.Random(0), 0, 0
    while True:
        wait = max(0.0, flying[0][0] - time.monotonic()) if flying else None
        for end in select.select([one, other, STDIN], [], [], wait)[0]:
            if end == STDIN:
                return {"carried": carried, "lost": lost}
            frame = os.read(end, FRAME)
            if chance.random() < loss:
                lost += 1
            else:
                flying.append((time.monotonic() + delay, far[end], frame))
        while flying and flying[0][0] <= time.monotonic():
            _, end, frame = flying.popleft()
            carried += 1
            with suppress(OSError):  # the interface is down
                os.write(end, frame)


if __name__ == "__main__":
    ends = [interface(name) for name in sys.argv[1:3]]
    print("ready", flush=True)
    print(json.dumps(carry(*ends, *map(float, sys.argv[3:]))))
