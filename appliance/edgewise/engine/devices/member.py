"""The process of a member: `python -m edgewise.engine.devices.member --fd N --parent PID --rank K`.

It does what the leader tells it, in that order, and nothing of its own: which tokens, which pages, which rows. It knows no
request and draws no token. It ends with the leader, whose end the kernel and the socket both tell.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import socket
import sys
import traceback
from typing import NoReturn, get_args

from edgewise.core.errors import EdgewiseError
from edgewise.core.log import LogFormat, configure_logging
from edgewise.engine.devices.link import Gone, Link
from edgewise.engine.devices.messages import Failed, Share, ToMember, decode_to_member
from edgewise.engine.worker import (
    EXIT_FAULT,
    EXIT_ORPHAN,
    die_with_parent,
    ignore_signals,
    limit_caches,
    limit_threads,
    prefer_as_oom_victim,
)


def serve(link: Link[ToMember]) -> None:
    """Load the share that the first message describes, and work until told to leave."""
    share = link.receive()
    if not isinstance(share, Share):
        raise TypeError(f"the first message is {type(share).__name__}, not Share")
    limit_threads(share.threads)  # read by the libraries when first imported
    limit_caches()
    from edgewise.engine.devices.work import ShareWorker

    ShareWorker(share, link).run()


def main(arguments: list[str] | None = None) -> NoReturn:
    parser = argparse.ArgumentParser(
        prog="edgewise.engine.devices.member", description="One device's process of an engine; started by the engine."
    )
    parser.add_argument("--fd", type=int, required=True, help="inherited end of the socket pair")
    parser.add_argument("--parent", type=int, required=True, help="process id of the engine")
    parser.add_argument("--rank", type=int, required=True, help="which member this is, for the list of processes")
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-format", default="auto", choices=get_args(LogFormat))
    options = parser.parse_args(arguments)
    ignore_signals()
    die_with_parent(options.parent)
    configure_logging(level=options.log_level, format=options.log_format)
    prefer_as_oom_victim()
    faulthandler.enable()
    sock = socket.socket(fileno=options.fd)
    sock.set_inheritable(False)
    link: Link[ToMember] = Link(sock, decode_to_member)
    try:
        serve(link)
    except Gone:
        _leave(EXIT_ORPHAN)
    except Exception as error:  # noqa: BLE001 - outermost frame: reported to the leader, then the process ends
        with contextlib.suppress(Gone):
            link.send(_last_words(error))
        _leave(EXIT_FAULT)
    _leave(0)


def _last_words(error: Exception) -> Failed:
    code = error.code if isinstance(error, EdgewiseError) else "engine_error"
    message = error.message if isinstance(error, EdgewiseError) else f"{type(error).__name__}: {error}"
    return Failed(code=code, message=message, traceback="".join(traceback.format_exception(error)))


def _leave(status: int) -> NoReturn:
    """Exit without the interpreter's tear-down, as the engine does (`engine.worker`)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
