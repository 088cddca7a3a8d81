"""A client that leaves the processor to the server: while answers come it does no more than note bytes and their times.

The server that is measured computes on all cores of the machine on which its client runs too. A client that reads each event as
it comes takes about as much of them as the service itself, and would be measured with it.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import h11

from edgewise.bench.request import CUT, Sample, Target, note_line
from edgewise.bench.work import Work

TIMEOUT_S = 600.0
_READ_BYTES = 1 << 16
Piece = tuple[float, bytes]


def ask_leanly(target: Target, works: Sequence[Work]) -> list[Sample]:
    """A `peer_sides.AskAll`: one connection for each request, all sent before any answer is read.

    Raises:
        OSError: A server cannot be reached or closes a connection before its time.
        TimeoutError: Nothing came for `TIMEOUT_S`.
    """
    requests = [_request(target, work) for work in works]
    parts = urlsplit(target.url)
    began = time.perf_counter()
    connections = []
    try:
        for request in requests:
            connection = socket.create_connection((parts.hostname, parts.port or 80), TIMEOUT_S)
            connections.append(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(request)
        answers = _read_all(connections)
    finally:
        for connection in connections:
            connection.close()
    ended = time.perf_counter()
    return [_sample(began, ended, pieces) for pieces in answers]


def _request(target: Target, work: Work) -> bytes:
    body = json.dumps(target.body(work)).encode()
    parts = urlsplit(target.url)
    connection = h11.Connection(h11.CLIENT)
    head = h11.Request(
        method="POST",
        target=parts.path,
        headers=[
            ("host", parts.netloc),
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ],
    )
    return b"".join(connection.send(event) or b"" for event in (head, h11.Data(data=body), h11.EndOfMessage()))


def _read_all(connections: Sequence[socket.socket]) -> list[list[Piece]]:
    """All bytes of every connection until the server closes it, in the pieces in which they came."""
    answers: list[list[Piece]] = [[] for _ in connections]
    with selectors.DefaultSelector() as selector:
        for connection, pieces in zip(connections, answers, strict=True):
            selector.register(connection, selectors.EVENT_READ, pieces)
        while selector.get_map():
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise TimeoutError(f"a server was silent for {TIMEOUT_S:g} s")
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(_READ_BYTES)
                key.data.append((time.perf_counter(), data))
                if not data:
                    selector.unregister(key.fileobj)
    return answers


def _sample(began: float, ended: float, pieces: Sequence[Piece]) -> Sample:
    """What an answer says, with the times at which it said it."""
    sample = Sample(scheduled=began, sent=began, ended=ended)
    sample.error = CUT
    try:
        for now, line in _lines(pieces):
            stopped = note_line(line, now, sample)
            if stopped is not None:
                sample.error = stopped or None
                break
    except h11.RemoteProtocolError as error:
        sample.error = f"broken: {error}"
    except _Refused as error:
        sample.error = str(error)
    return sample


class _Refused(Exception):
    """Another status than 200; the message is the status."""


def _lines(pieces: Sequence[Piece]) -> Iterator[tuple[float, str]]:
    """Lines of the body, each with the time of the piece that completed it."""
    connection = h11.Connection(h11.CLIENT)
    # The request's side of the conversation is over.
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "-"), ("connection", "close")]))
    connection.send(h11.EndOfMessage())
    rest = b""
    for now, data in pieces:
        connection.receive_data(data)
        while (event := connection.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Response) and event.status_code != 200:
                raise _Refused(str(event.status_code))
            if isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
                return
            if isinstance(event, h11.Data):
                *whole, rest = (rest + bytes(event.data)).split(b"\n")
                yield from ((now, line.decode()) for line in whole)
