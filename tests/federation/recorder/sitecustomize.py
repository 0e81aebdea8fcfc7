"""Loaded by every Python process of a recorded site: what goes into TLS is written down before it is encrypted."""

import os
import ssl
from typing import Any

FOLDER = os.environ["MAMMOFED_TEST_RECORD"]
_send, _sendall, _write = ssl.SSLSocket.send, ssl.SSLSocket.sendall, ssl.SSLObject.write


def _keep(data: Any) -> None:
    with open(os.path.join(FOLDER, f"{os.getpid()}.sent"), "ab") as file:
        file.write(data)


def send(self: ssl.SSLSocket, data: Any, flags: int = 0) -> int:
    sent = _send(self, data, flags)
    _keep(memoryview(data).cast("B")[:sent])
    return sent


def sendall(self: ssl.SSLSocket, data: Any, flags: int = 0) -> None:
    _sendall(self, data, flags)  # it calls `send`


def write(self: ssl.SSLObject, data: Any) -> int:
    written = _write(self, data)
    _keep(memoryview(data).cast("B")[:written])
    return written


ssl.SSLSocket.send, ssl.SSLSocket.sendall = send, sendall  # type: ignore[method-assign]
ssl.SSLObject.write = write  # type: ignore[method-assign]
