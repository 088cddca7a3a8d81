"""The process of a member: `python -m edgewise.engine.devices.member --fd N --parent PID --rank K`.

It does what the leader tells it, in that order, and nothing of its own: which tokens, which pages, which rows. It knows no
request and draws no token. It ends with the leader, whose end the kernel and the socket both tell.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import NoReturn

from edgewise.engine.child import EXIT_FAULT, EXIT_ORPHAN, begin, last_words, leave, limit_caches, limit_threads
from edgewise.engine.devices.link import Gone, Link
from edgewise.engine.devices.messages import Failed, Share, ToMember, decode_to_member


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
    parser.add_argument("--rank", type=int, required=True, help="which member this is, for the list of processes")
    _, sock = begin(parser, arguments)
    link: Link[ToMember] = Link(sock, decode_to_member)
    try:
        serve(link)
    except Gone:
        leave(EXIT_ORPHAN)
    except Exception as error:  # noqa: BLE001 - outermost frame: reported to the leader, then the process ends
        with contextlib.suppress(Gone):
            link.send(Failed(**last_words(error)))
        leave(EXIT_FAULT)
    leave(0)


if __name__ == "__main__":
    main()
