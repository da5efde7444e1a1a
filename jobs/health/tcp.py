"""TCP bandwidth from one host to another on any free port; gloo and jax.distributed need such ports, too."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import time

# Limit for a peer behind a firewall that drops packets.
CONNECT_TIMEOUT_S = 5.0
_CHUNK_BYTES = 1 << 20
_KEY_BYTES = 16
_COUNT_BYTES = 8


class Sink:
    """Receives one sender's data and reports back how much arrived; listens on one address for one connection."""

    def __init__(self, ip: str) -> None:
        self.key = secrets.token_bytes(_KEY_BYTES)
        """Key that the sender must send first; the sink hangs up on others."""
        self._listener = socket.create_server((ip, 0), family=socket.AF_INET6 if ":" in ip else socket.AF_INET)
        self._listener.settimeout(CONNECT_TIMEOUT_S + 1)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._run, name="sink", daemon=True).start()

    def _run(self) -> None:
        # A sender that never connects, or breaks off, reports its own error.
        with contextlib.suppress(OSError), self._listener:
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(CONNECT_TIMEOUT_S)
                if not hmac.compare_digest(_receive(connection, _KEY_BYTES), self.key):
                    return
                num_bytes, buffer = 0, bytearray(_CHUNK_BYTES)
                while received := connection.recv_into(buffer):
                    num_bytes += received
                connection.sendall(num_bytes.to_bytes(_COUNT_BYTES))


def send(ip: str, port: int, key: bytes, *, seconds: float) -> float:
    """Send to a ``Sink`` for ``seconds``; return the bytes per second that arrived.

    Raises:
      OSError: the sink can't be reached, or the connection breaks.
    """
    with socket.create_connection((ip, port), timeout=CONNECT_TIMEOUT_S) as connection:
        connection.sendall(key)
        chunk, began = bytes(_CHUNK_BYTES), time.perf_counter()
        while time.perf_counter() - began < seconds:
            connection.sendall(chunk)
        connection.shutdown(socket.SHUT_WR)
        num_bytes = int.from_bytes(_receive(connection, _COUNT_BYTES))
        return num_bytes / (time.perf_counter() - began)


def _receive(connection: socket.socket, num_bytes: int) -> bytes:
    received = b""
    while len(received) < num_bytes:
        part = connection.recv(num_bytes - len(received))
        if not part:
            raise ConnectionError("the peer hung up")
        received += part
    return received
