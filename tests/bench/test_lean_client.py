"""The client that reads what it got only after the last byte: it must say the same of a stream as the one that reads at once."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from edgewise.bench.request import Target
from edgewise.bench.work import Work
from tests.bench.lean_client import ask_leanly
from tests.bench.peer_sides import ask_all
from tests.fakes.openai_server import Script, openai_server

FIELDS = {"temperature": 0}


def target(url: str) -> Target:
    return Target(base_url=url, model="m", endpoint="completions", fields=FIELDS)


WORKS = [Work(prompt=[5] * 24, answer_tokens=6), Work(prompt=[6] * 24, answer_tokens=6)]


@pytest.mark.parametrize(
    "script",
    [
        Script(),
        Script(pieces=7),
        Script(usage=False),
        Script(error="engine_error"),
        Script(cut=True),
        Script(raw=b"data: {\n\n"),
        Script(raw=b""),
    ],
)
def test_both_clients_say_the_same(script: Script) -> None:
    with openai_server() as server:
        server.default = script
        lean, usual = ask_leanly(target(server.url), WORKS), ask_all(target(server.url), WORKS)
        bodies = [json.dumps(body, sort_keys=True) for body in server.bodies]
    assert sorted(bodies[:2]) == sorted(bodies[2:]), "and both have asked the same"
    for mine, theirs in zip(lean, usual, strict=True):
        assert mine.error == theirs.error
        assert (mine.prompt_tokens, mine.answer_tokens) == (theirs.prompt_tokens, theirs.answer_tokens)
        assert len(mine.arrivals) == len(theirs.arrivals)


def test_a_refusal_is_told_by_its_status() -> None:
    with openai_server() as server:
        server.default = Script(status=503, code="busy")
        (sample,) = ask_leanly(target(server.url), WORKS[:1])
    assert sample.error == "503"
    assert not sample.arrivals


EVENT = b'data: {"choices":[{"text":"x"}]}\n\n'


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


@contextmanager
def slow_server(parts: list[bytes], pause_s: float) -> Iterator[str]:
    """Sends `parts` one after the other, with a pause before each but the first."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                for number, part in enumerate(parts):
                    time.sleep(pause_s if number else 0.0)
                    connection.sendall(part)

        thread = threading.Thread(target=serve, name="slow-server")
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        thread.join()


def test_an_event_has_come_when_its_last_byte_has() -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    two = chunk(EVENT + EVENT)
    parts = [head + chunk(EVENT), two[:30], two[30:], chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"]
    with slow_server(parts, 0.05) as url:
        (sample,) = ask_leanly(target(url), WORKS[:1])
    assert sample.error is None
    first, second, third = sample.arrivals
    assert second - first > 0.09, "the second event was whole after two pauses"
    assert third == second


def test_a_connection_that_ends_inside_of_a_chunk_is_told() -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    with slow_server([head + chunk(EVENT)[:-5]], 0.0) as url:
        (sample,) = ask_leanly(target(url), WORKS[:1])
    assert sample.error is not None
    assert sample.error.startswith("broken")
