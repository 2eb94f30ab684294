"""No test of the tools reaches the network: names resolve by a table, and a socket connects to
127.0.0.1 or not at all."""

import socket

import pytest


@pytest.fixture(autouse=True)
def names(monkeypatch) -> dict[str, list[str]]:
    """The table of names, for a test to fill: host -> addresses."""
    table: dict[str, list[str]] = {}
    real_connect, real_getaddrinfo = socket.socket.connect, socket.getaddrinfo

    def getaddrinfo(host, port, *rest, flags=0, **more):
        if host in table and not flags & socket.AI_NUMERICHOST:
            return [(0, socket.SOCK_STREAM, 6, "", (address, port)) for address in table[host]]
        # an error for a name
        return real_getaddrinfo(host, port, *rest, flags=socket.AI_NUMERICHOST, **more)

    def connect(self, address):
        assert address[0] == "127.0.0.1", f"a test tried to reach {address}"
        return real_connect(self, address)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(socket.socket, "connect", connect)
    return table
