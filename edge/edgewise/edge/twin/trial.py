"""Settings of a fleet on trial: a service that does not come up with them goes back to the last ones that were good.

A service that cannot start cannot be mended from afar, so this happens before it starts and when it fails to. Two starts are
tried: the first may have been ended by a power cut.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from edgewise.api.deps import ApiDependencies
from edgewise.core.errors import EdgewiseError, StorageError
from edgewise.core.log import get_logger
from edgewise.core.patience import within
from edgewise.core.settings import LoadedSettings, with_fleet
from edgewise.core.settings_overlay import Overlay, read_overlay, write_overlay
from edgewise.edge.agent.proof import wait_answered

log = get_logger(__name__)

MAX_TRIES = 2
PROOF_S = 900.0
"""Within so many seconds after a start a token must be answered."""


def begin_trial(loaded: LoadedSettings) -> LoadedSettings:
    """The settings to start with: those on trial, unless they were tried often enough. Nothing here keeps the service from
    starting."""
    home = loaded.settings.home
    if loaded.fleet_fault is not None:
        return loaded
    overlay = read_overlay(home)
    if overlay.trial is None:
        return loaded
    try:
        if overlay.tries >= MAX_TRIES:
            why = "the service was started with them and did not answer"
            return with_fleet(loaded, give_up(home, overlay, why).values)
        write_overlay(home, overlay.model_copy(update={"tries": overlay.tries + 1}))
    except StorageError as error:
        log.warning("trial_not_noted", reason=error.message)
        return with_fleet(loaded, overlay.good.values)  # what cannot be counted is not tried
    return loaded


def end_trial(home: Path, error: EdgewiseError) -> bool:
    """The service could not be started; whether it may be because of settings on trial, which are given up then."""
    overlay = read_overlay(home)
    if overlay.trial is None:
        return False
    give_up(home, overlay, error.message)
    return True


def give_up(home: Path, overlay: Overlay, why: str) -> Overlay:
    """Back to what was good; the file says so."""
    back = overlay.given_up(why)
    log.error("fleet_settings_given_up", gen=back.failed, reason=why)
    write_overlay(home, back)
    return back


class NotProven(EdgewiseError):
    """No token was answered in time."""


async def prove(deps: ApiDependencies, home: Path, seconds: float = PROOF_S) -> bool:
    """Wait until the service has answered with what is on trial, which is good then. False: it has not in time, and they are
    given up; a start is needed to be without them."""
    overlay = await asyncio.to_thread(read_overlay, home)
    if overlay.trial is None:
        return True
    try:
        await within(wait_answered(deps), seconds, lambda: NotProven(f"no token was answered within {seconds:g} s"))
    except NotProven as error:
        await asyncio.to_thread(give_up, home, overlay, error.message)
        return False
    current = await asyncio.to_thread(read_overlay, home)
    if current.trial == overlay.trial:  # a newer one may have come meanwhile, which needs a start of its own
        await asyncio.to_thread(write_overlay, home, current.proven())
    return True
