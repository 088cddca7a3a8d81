"""Labels and text of pictures over a real service: pulled models, worker processes, the command line, a killed worker."""

from __future__ import annotations

import base64
import json
import os
import signal
from typing import Any

import httpx

from tests.e2e.service import edgewise, import_tiny, new_home, running
from tests.e2e.vision import INVOICE, add_vision, invoice, photo, png

OCR, CLASSIFY = "/edgewise/v1/vision/ocr", "/edgewise/v1/vision/classify"
TIMEOUT_S = 120


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def test_a_device_reads_and_labels_pictures() -> None:
    with new_home(starter=False) as home:
        add_vision(home)
        name = import_tiny(home)
        page = home / "invoice.png"
        page.write_bytes(png(invoice()))
        with running(model=name, home=home) as service:
            assert edgewise(home, "vision", "ocr", str(page), "--url", service.url).splitlines() == list(INVOICE)
            (home / "coffee.png").write_bytes(photo("coffee.png"))
            told = edgewise(
                home, "vision", "classify", str(home / "coffee.png"), "--json", "--top", "1", "--url", service.url
            )
            answer = json.loads(told)
            assert [one["name"] for one in answer["labels"]] == ["espresso"]
            check_receipt(answer["edgewise"], "efficientnet-lite0")
            read = post(service.url, OCR, image=data_url(page.read_bytes()))
            assert read["text"] == "\n".join(INVOICE)
            check_receipt(read["edgewise"], "rapidocr")
            refusals(service.url)
            booked_and_replaced(service.url, data_url(page.read_bytes()))


def post(url: str, path: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(url + path, json=body, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def check_receipt(receipt: dict[str, Any], model: str) -> None:
    """It says which model looked, and where."""
    assert receipt["model"] == model
    assert receipt["digest"].startswith("sha256:")
    (stage,) = receipt["stages"]
    assert (stage["stage"], stage["where"], stage["model"]) == ("look", "local", model)
    assert stage["numeric_class"].startswith("onnxruntime-")
    assert stage["compute_ms"] > 0


def refusals(url: str) -> None:
    for path, body, status, param in (
        (OCR, {"image": data_url(b"no picture")}, 400, "image"),
        (OCR, {"image": "https://127.0.0.1/x.png"}, 400, "image"),
        (OCR, {"image": "blob:sha256:00"}, 400, "image"),
        (OCR, {"image": data_url(png(invoice())), "frame": 3}, 400, "frame"),
        (OCR, {"image": data_url(b""), "top": 3}, 400, "top"),
        (OCR, {}, 400, "image"),
        (CLASSIFY, {"image": data_url(b""), "model": "rapidocr"}, 400, "model"),
        (CLASSIFY, {"image": data_url(b""), "model": "nobody"}, 404, "model"),
        ("/v1/chat/completions", {"model": "rapidocr", "messages": [{"role": "user", "content": "hi"}]}, 400, "model"),
    ):
        answer = httpx.post(url + path, json=body, timeout=TIMEOUT_S)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), (path, body, answer.text)


def booked_and_replaced(url: str, image: str) -> None:
    """Its memory is in the pool's book, and a worker that is killed is started again for the next picture."""
    models = {one["name"]: one for one in httpx.get(url + "/edgewise/v1/models", timeout=TIMEOUT_S).json()["models"]}
    assert models["rapidocr"]["memory_bytes"] >= 800 << 20
    os.kill(models["rapidocr"]["pid"], signal.SIGKILL)
    assert post(url, OCR, image=image)["text"] == "\n".join(INVOICE)
