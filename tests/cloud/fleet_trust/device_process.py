"""A device in a process of its own: enrols, connects with its certificate, does what it is told until it is ended.

`python -m tests.cloud.fleet_trust.device_process HOME URL CODE CA`; it prints its clock's year, its uid, and "connected".
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from edgewise.core.settings import load_settings
from edgewise.core.tls_time import FILE, TimeFloor
from edgewise.edge.enrol.enrolment import enrol
from edgewise.edge.enrol.folder import EnrolmentFolder, with_enrolment
from edgewise.wire.mqtt.make import broker_of
from tests.fakes.fleet_device import FleetDevice


def certified_device(home: Path) -> FleetDevice:
    """A scripted device over the broker, name and certificate that enrolment has written into a state directory."""
    mqtt = with_enrolment(load_settings(overrides={"home": home}, environ={}, default_file=home / "none")).settings.mqtt
    assert mqtt.uid is not None
    device = FleetDevice(mqtt.uid, mqtt.port, home)
    device._broker = broker_of(mqtt, mqtt.uid, TimeFloor(home / FILE))
    device.link = device._make_link()
    return device


async def main(home: Path, url: str, code: str, ca: Path) -> None:
    print(time.gmtime().tm_year, flush=True)
    if EnrolmentFolder(home).read() is None:
        await enrol(home, url, code, ca_file=ca)
    device = certified_device(home)
    print(device.uid, flush=True)
    await device.start()
    print("connected", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])))
