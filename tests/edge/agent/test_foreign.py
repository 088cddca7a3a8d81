"""A program that knows nothing of Edgewise asks a device for an answer: `mosquitto_rr` of mosquitto's own clients."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest

from edgewise.wire.envelope import new_ulid
from tests.e2e.broker import BrokerProcess
from tests.edge.agent.device import Device
from tests.fakes.serving import says


@pytest.mark.skipif(shutil.which("mosquitto_rr") is None, reason="mosquitto-clients is not installed")
async def test_a_foreign_client_asks_and_gets_the_answer(broker: BrokerProcess, device: Device, uid: str) -> None:
    device.engine.script = says("an answer")
    reply = f"f/1/d/{uid}/up/reply/rr"
    message = {"id": new_ulid(), "to": reply, "body": {"op": "infer", "args": {"prompt": "hi", "max_tokens": 50}}}
    process = await asyncio.create_subprocess_exec(
        "mosquitto_rr", "-V", "mqttv5", "-h", broker.host, "-p", str(broker.port), "-W", "30",
        "-t", f"f/1/d/{uid}/dn/cmd/infer", "-e", reply, "-m", json.dumps(message),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    told = json.loads(out)["body"]
    assert told["state"] == "succeeded"
    assert told["result"]["choices"][0]["text"] == "an answer"
