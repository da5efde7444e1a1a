"""The bandwidth of a real TCP connection."""

import socket

import pytest

from jobs.health.tcp import Sink, send

IP = "127.0.0.1"


def test_what_arrives_is_counted():
    sink = Sink(IP)
    assert send(IP, sink.port, sink.key, seconds=0.05) > 0


def test_a_stranger_is_hung_up_on():
    sink = Sink(IP)
    with pytest.raises(OSError, match=r"hung up|[Rr]eset|[Pp]ipe"):
        send(IP, sink.port, bytes(len(sink.key)), seconds=0.2)


def test_nobody_listens():
    with socket.socket() as closed:
        closed.bind((IP, 0))
        with pytest.raises(ConnectionRefusedError):
            send(IP, closed.getsockname()[1], bytes(16), seconds=0.05)


def test_a_sink_takes_one_connection():
    sink = Sink(IP)
    send(IP, sink.port, sink.key, seconds=0.01)
    with pytest.raises(OSError, match=r"refused|hung up|[Rr]eset|[Pp]ipe"):
        send(IP, sink.port, sink.key, seconds=0.01)
