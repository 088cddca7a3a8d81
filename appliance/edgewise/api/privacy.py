"""Which privacy label a request gets, and which policy it asks for.

    the strictest of: its key's, its model's, that of the answer it continues (the configured default where none has one),
    and the header `X-Edgewise-Privacy`

A header may only make it stricter: it is refused with 403 where it asks for more than the others allow.
"""

from __future__ import annotations

from typing import get_args

from starlette.datastructures import Headers

from edgewise.api.deps import KeyRecord
from edgewise.core.errors import InvalidRequest, NotPermitted
from edgewise.core.privacy import Privacy, privacy_of
from edgewise.pipeline.plan import PolicyName

HEADER = "X-Edgewise-Privacy"
POLICY_HEADER = "X-Edgewise-Policy"
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)


def asked_privacy(headers: Headers) -> Privacy | None:
    """The label that the request's header names; None without one.

    Raises:
        InvalidRequest: It names no label.
    """
    value = headers.get(HEADER)
    if value is None:
        return None
    try:
        return privacy_of(value)
    except ValueError as error:
        raise InvalidRequest(f"The header '{HEADER}' is refused: {error}.", param=HEADER) from error


def key_label(key: KeyRecord | None) -> Privacy | None:
    """The label that a key gives its requests; None for a caller without a key and for a key without a label."""
    return None if key is None or key.privacy is None else privacy_of(key.privacy)


def privacy_in_force(asked: Privacy | None, floor: Privacy) -> Privacy:
    """The label of one request: the header's where it is stricter than `floor`.

    Raises:
        NotPermitted: The header would loosen it.
    """
    if asked is None:
        return floor
    if asked > floor:
        raise NotPermitted(
            f"The header '{HEADER}' asks for '{asked.label}', but this request is labelled '{floor.label}' by its key, its "
            "model, the answer that it continues or `placement.privacy`, and a header may only make it stricter. Leave the "
            "header out, or use a key made with `edgewise keys new --privacy`."
        )
    return asked


def asked_policy(headers: Headers) -> PolicyName | None:
    """The placement policy that the request's header names; None without one.

    Raises:
        InvalidRequest: It names no policy.
    """
    value = headers.get(POLICY_HEADER)
    if value is None:
        return None
    for policy in POLICIES:
        if value.strip().lower() == policy:
            return policy
    raise InvalidRequest(
        f"The header '{POLICY_HEADER}' is refused: '{value[:40]}' is no policy; choose from {', '.join(POLICIES)}.",
        param=POLICY_HEADER,
    )
