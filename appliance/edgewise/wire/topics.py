"""Topics, root `f/1`: built from checked parts, and taken apart again (docs/wire.md has the table).

A name that became part of a topic unchecked could hold "/" or a wildcard and reach another device's topics.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from edgewise.core.errors import BadMessage, InvalidRequest

ROOT = "f/1"
CLASSES = ("realtime", "interactive", "background", "bulk")
"""Classes of jobs, `core.priority` in words."""
HOST_LIVE = f"{ROOT}/host/live"
"""Where whoever receives what devices send says that it is there; devices may read it."""
ASK = "ask"
"""In the place of a class: a question to the cloud that is no job."""
BLOB_STEPS = ("get", "blk", "done")

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PART = re.compile(r"[A-Za-z0-9._:@~-]{1,64}")


def check_uid(uid: str) -> str:
    """`uid`, if it can be a device's name: it is one level of a topic, client id and user at the broker.

    Raises:
        InvalidRequest: It is empty, longer than 64 characters, or has others than letters, digits, ".", "_" and "-".
    """
    if _UID.fullmatch(uid) is None:
        raise InvalidRequest(
            f"{uid[:80]!r} is no device name: 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit.",
            param="uid",
        )
    return uid


def job_id(key: str) -> str:
    """The level of a topic that stands for the job `key`: keys may hold "/", a level may not."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def job_request(kind: str, uid: str) -> str:
    """Where device `uid` offers a job of a class, or asks (`ASK`)."""
    return f"{ROOT}/job/{_part(kind)}/{check_uid(uid)}"


def job_requests(kind: str) -> str:
    """Subscription of all requests of a class; one of the subscribers receives each."""
    return f"$share/w-{_part(kind)}/{ROOT}/job/{_part(kind)}/#"


def job_events(uid: str, job: str) -> str:
    """Where the stream of a job goes down to its device."""
    return _device(uid, "dn", "job", job)


def job_control(uid: str, job: str) -> str:
    """Where a device says how far it is, grants credit and cancels."""
    return _device(uid, "up", "job", job)


def result(uid: str, way: str, job: str) -> str:
    """Where a device delivers the result of a deferred job (`way` "up"), and where its receiver acknowledges it ("dn")."""
    return _device(uid, way, "result", job)


def live(uid: str) -> str:
    """Where a device says that it is there; retained, and its last will."""
    return _device(uid, "up", "live")


def birth(uid: str) -> str:
    """Where a device says what it is, after each connect; retained."""
    return _device(uid, "up", "birth")


def sync(uid: str) -> str:
    """Where a device says how far it is, after each connect."""
    return _device(uid, "up", "sync")


def desired(uid: str, shadow: str) -> str:
    """What is desired of a device; retained."""
    return _device(uid, "dn", "des", shadow)


def reported(uid: str, shadow: str) -> str:
    """What is in force on a device."""
    return _device(uid, "up", "rep", shadow)


def command(uid: str, op: str) -> str:
    """A command to a device; never retained."""
    return _device(uid, "dn", "cmd", op)


def control(uid: str, command_id: str) -> str:
    """Where a command is cancelled, extended or given credit."""
    return _device(uid, "dn", "ctl", command_id)


def received(uid: str) -> str:
    """Where a device hears which rows of its outbox have arrived."""
    return control(uid, "outbox")


def ack(uid: str, command_id: str) -> str:
    """Every change of a command's state, and the pieces of its answer."""
    return _device(uid, "up", "ack", command_id)


def telemetry(uid: str, group: str) -> str:
    """Samples of a group."""
    return _device(uid, "up", "tel", group)


def event(uid: str, severity: str) -> str:
    """What happened on a device."""
    return _device(uid, "up", "evt", severity)


def log_part(uid: str, command_id: str) -> str:
    """A part of the log that a command asked for."""
    return _device(uid, "up", "log", command_id)


def blob(uid: str, way: str, xfer: str, step: str) -> str:
    """A step ("get", "blk" or "done") of a transfer, `way` "up" or "dn"."""
    if step not in BLOB_STEPS:
        raise InvalidRequest(f"{step!r} is no step of a blob's transfer.")
    return f"{_device(uid, way, 'blob', xfer)}/{step}"


def cloud(uid: str) -> str:
    """Where a cloud service says to others that it is there."""
    return f"{ROOT}/cloud/{check_uid(uid)}"


def clouds() -> str:
    """Subscription of what all cloud services say there."""
    return f"{ROOT}/cloud/+"


def own(uid: str, name: str) -> str:
    """A topic that device `uid` both writes and reads: the broker probe, the note of its last session."""
    return _device(uid, "own", name)


def down(uid: str) -> str:
    """Subscription of all that is sent to a device."""
    return _device(uid, "dn", "#", wild=True)


def up(kind: str) -> str:
    """Subscription of what all devices send of one kind ("job", "blob", "live", "ack", ...)."""
    return f"{ROOT}/d/+/up/{_part(kind)}/#"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic taken apart. `way` is "up", "dn", "own" or "job"; for "job" the only element of `rest` is the class."""

    uid: str
    way: str
    rest: tuple[str, ...]


def parse(topic: str) -> Topic:
    """The parts of a topic that a device or the cloud receives.

    Raises:
        BadMessage: It is none of this protocol's.
    """
    parts = topic.split("/")
    if topic.startswith(f"{ROOT}/d/") and len(parts) >= 6 and parts[4] in ("up", "dn", "own"):
        uid, way, rest = parts[3], parts[4], tuple(parts[5:])
    elif topic.startswith(f"{ROOT}/job/") and len(parts) == 5:
        uid, way, rest = parts[4], "job", (parts[3],)
    else:
        raise BadMessage(f"{topic[:100]!r} is no topic of this protocol.")
    if _UID.fullmatch(uid) is None or any(_PART.fullmatch(part) is None for part in rest):
        raise BadMessage(f"{topic[:100]!r} is no topic of this protocol: a level has other characters than names have.")
    return Topic(uid, way, rest)


def _device(uid: str, way: str, *rest: str, wild: bool = False) -> str:
    parts = rest if wild else [_part(part) for part in rest]
    return "/".join((ROOT, "d", check_uid(uid), _part(way), *parts))


def _part(text: str) -> str:
    if _PART.fullmatch(text) is None:
        raise InvalidRequest(
            f"{text[:80]!r} cannot be a level of a topic: 1 to 64 letters, digits or one of . _ : @ ~ -"
        )
    return text
