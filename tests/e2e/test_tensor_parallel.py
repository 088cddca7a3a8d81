"""Two devices through the whole service: the answer of one device, shown in the metrics, and nothing left after kill -9."""

from __future__ import annotations

import os
import re
import signal

import httpx
import psutil

from tests.e2e.service import import_tiny, new_home, running

SETTINGS = {"EDGEWISE_ENGINE__KERNELS": "reference", "EDGEWISE_DTYPE": "float32", "EDGEWISE_KV_DTYPE": "float32"}
BODY = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "one two three"}],
    "max_completion_tokens": 40,
    "temperature": 0.8,
    "seed": 5,
}


def _text(url: str) -> str:
    answer = httpx.post(f"{url}/v1/chat/completions", json=BODY, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def test_two_devices_answer_as_one() -> None:
    with new_home(starter=False) as home:
        import_tiny(home)
        with running(home=home, model="tiny", environment=SETTINGS) as device:
            expected = _text(device.url)
        with running("--tensor-parallel", "2", home=home, model="tiny", environment=SETTINGS) as device:
            assert _text(device.url) == expected
            metrics = httpx.get(f"{device.url}/metrics", trust_env=False).text
            assert re.search(r'^edgewise_engine_devices\{model="tiny"\} 2', metrics, re.MULTILINE)
            service = psutil.Process(device.pid)
            below = service.children(recursive=True)
            members = [one for one in below if "edgewise.engine.devices.member" in one.cmdline()]
            assert len(members) == 1
            os.kill(service.pid, signal.SIGKILL)
            _, left = psutil.wait_procs(below, timeout=30)
            assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []
