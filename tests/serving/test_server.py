"""Listening sockets: bound on every address of a name, and refused with the remedy that fits."""

from __future__ import annotations

import contextlib
import socket

import pytest

from edgewise.core.errors import ConfigError
from edgewise.serving.server import AddressUnavailable, listen


def test_a_free_port_is_taken_and_listened_on() -> None:
    sockets = listen("127.0.0.1", 0)
    try:
        port = sockets[0].getsockname()[1]
        assert port > 0
        with socket.create_connection(("127.0.0.1", port)):
            pass
    finally:
        for one in sockets:
            one.close()


def test_a_name_with_several_addresses_has_one_port_on_all() -> None:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(one) for one in listen("localhost", 0)]
        assert len({one.getsockname()[1] for one in sockets}) == 1


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_all_addresses_means_both_protocols() -> None:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(one) for one in listen("::", 0)]
        port = sockets[0].getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            with socket.create_connection((address, port)):
                peer, _ = sockets[0].accept()
                peer.close()


def test_a_port_that_is_taken_asks_whether_the_service_runs() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(AddressUnavailable, match=rf"127\.0\.0\.1 port {port}.*running already.*--port"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "remedy", "retryable"),
    [("192.0.2.77", "no such address.*--host", True), ("no-such-name.invalid", "name is unknown.*--host", False)],
)
def test_an_address_that_is_not_ours_is_no_question_of_what_runs(host: str, remedy: str, retryable: bool) -> None:
    with pytest.raises(ConfigError, match=remedy) as refused:
        listen(host, 8400)
    assert "running already" not in refused.value.message
    assert refused.value.retryable is retryable, "a network may come up after the service"
