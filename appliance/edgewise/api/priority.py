"""Which deadline class a request gets.

    header `X-Edgewise-Priority`, else the less urgent of the key's class and the model's, else what is usual: realtime for
    voice, interactive for the rest; while the device is pressed, less for pictures and film (`pipeline.pressure`)

A key's class is also its ceiling: a header may lower it, and is refused with 403 where it asks for more. A caller without a key
is on this machine and may ask for any class.
"""

from __future__ import annotations

from starlette.datastructures import Headers

from edgewise.api.deps import KeyRecord
from edgewise.core.errors import InvalidRequest, NotPermitted
from edgewise.core.priority import Priority, priority_of

HEADER = "X-Edgewise-Priority"


def asked_priority(headers: Headers, key: KeyRecord | None) -> Priority | None:
    """The class that the request's header names; None without one.

    Raises:
        InvalidRequest: It names no class.
        NotPermitted: It is more urgent than the key's.
    """
    value = headers.get(HEADER)
    if value is None:
        return None
    try:
        asked = priority_of(value)
    except ValueError as error:
        raise InvalidRequest(f"The header '{HEADER}' is refused: {error}.", param=HEADER) from error
    if key is not None and asked < priority_of(key.priority):
        raise NotPermitted(
            f"The header '{HEADER}' asks for '{asked.label}', but this API key's class is '{key.priority}' and a header may only "
            "lower it. Leave the header out, or use a key made with `edgewise keys new --priority`."
        )
    return asked


def priority_in_force(
    asked: Priority | None, key: KeyRecord | None, model: Priority | None, usual: Priority = Priority.INTERACTIVE
) -> Priority:
    """The class of one request: what it asked for, else the less urgent of its key's and its model's, else what is usual."""
    if asked is not None:
        return asked
    own = usual if key is None else priority_of(key.priority)
    if model is None:
        return own
    return model if key is None else max(own, model)
