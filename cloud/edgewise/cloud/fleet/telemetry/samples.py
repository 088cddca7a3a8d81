"""Samples of devices, into the database: the handler of `up/tel/<group>`."""

from __future__ import annotations

from sqlalchemy.orm import Session

from edgewise.cloud.fleet.attendance import evaluate
from edgewise.cloud.fleet.changes import Change
from edgewise.cloud.fleet.db.tables import Device, SampleRow
from edgewise.cloud.fleet.uplink import Uplink
from edgewise.core.errors import BadMessage
from edgewise.wire.fleet import Telemetry

OLDEST_S = 30 * 86_400.0
"""A sample that says to be older is of an unknown moment: it is dropped."""
MAX_NAMES = 500
"""Names of values that a device may ever use."""


def receive_telemetry(session: Session, device: Device, uplink: Uplink) -> list[Change]:
    """Store samples at their moments by this service's clock; the newest one of a group is what its gauges show. A value that it
    does not have is not known any more.

    Raises:
        BadMessage: The group is another than that of the topic, or the device has too many names.
    """
    telemetry = uplink.read(Telemetry)
    if telemetry.group != uplink.key:
        raise BadMessage(f"Telemetry of the group {telemetry.group!r} came as {uplink.key!r}.")
    last = uplink.at - telemetry.age_ms / 1000
    samples = [(last - sample.before_ms / 1000, dict(sample.values)) for sample in telemetry.samples]
    samples = [(at, values) for at, values in samples if uplink.at - at <= OLDEST_S]
    if not samples:
        return []
    _learn_names(device, telemetry.group, {name for _, values in samples for name in values})
    session.add_all(SampleRow(uid=device.uid, at=at, values=values) for at, values in samples)
    changes = [Change(device.tenant_id, "telemetry", device.uid)]
    at, values = max(samples, key=lambda sample: sample[0])
    group = device.gauges_at[telemetry.group]
    if at >= group["at"]:
        others = {name: value for name, value in device.gauges.items() if name not in group["names"]}
        device.gauges = others | values
        device.gauges_at = device.gauges_at | {telemetry.group: group | {"at": at}}
        changes += evaluate(session, device, uplink.at)
    return changes


def _learn_names(device: Device, group: str, names: set[str]) -> None:
    """Raises `BadMessage`, and changes nothing, if there are too many."""
    known = device.gauges_at.get(group, {"at": 0.0, "names": []})
    if names <= set(known["names"]) and group in device.gauges_at:
        return
    if len(names_of(device) | names) > MAX_NAMES:
        raise BadMessage(f"{device.uid} has more than {MAX_NAMES} names of values.")
    device.gauges_at = device.gauges_at | {group: known | {"names": sorted({*known["names"], *names})}}


def names_of(device: Device) -> set[str]:
    """Names of all values that a device has ever sent."""
    return {name for group in device.gauges_at.values() for name in group["names"]}
