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
MAX_GAUGES = 500
"""Names of values that a device may have."""


def receive_telemetry(session: Session, device: Device, uplink: Uplink) -> list[Change]:
    """Store samples at their moments by this service's clock; the newest of a group become the device's gauges.

    Raises:
        BadMessage: The group is another than that of the topic, or the device has too many names.
    """
    telemetry = uplink.read(Telemetry)
    if telemetry.group != uplink.key:
        raise BadMessage(f"Telemetry of the group {telemetry.group!r} came as {uplink.key!r}.")
    last = uplink.at - telemetry.age_ms / 1000
    newest: tuple[float, dict[str, float]] | None = None
    for sample in telemetry.samples:
        at = last - sample.before_ms / 1000
        if uplink.at - at > OLDEST_S or not sample.values:
            continue
        session.add(SampleRow(uid=device.uid, at=at, values=dict(sample.values)))
        if newest is None or at >= newest[0]:
            newest = (at, dict(sample.values))
    if newest is None:
        return []
    changes = [Change(device.tenant_id, "telemetry", device.uid)]
    if newest[0] >= device.gauges_at.get(telemetry.group, 0.0):
        gauges = device.gauges | newest[1]
        if len(gauges) > MAX_GAUGES:
            raise BadMessage(f"{device.uid} has more than {MAX_GAUGES} names of values.")
        device.gauges, device.gauges_at = gauges, device.gauges_at | {telemetry.group: newest[0]}
        changes += evaluate(session, device, uplink.at)
    return changes
