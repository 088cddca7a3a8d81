"""docs/cloud.md and the manifest in docs/operations.md say what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from edgewise.cloud.metrics import CloudMetrics
from edgewise.core.metrics import Metrics
from edgewise.core.settings import env_name, settings_fields
from tests.cloud.service import cloud_engine

yaml: Any = pytest.importorskip("yaml")
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "cloud.md").read_text()
OPERATIONS = (DOCS / "operations.md").read_text()


def manifest() -> list[dict[str, Any]]:
    (text,) = re.findall(r"```yaml\n(.*?)```", OPERATIONS, re.DOTALL)
    return list(yaml.safe_load_all(text))


def test_the_manifest_names_things_that_are_there() -> None:
    service, stateful, scaler = manifest()
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    known = {env_name(key) for key in settings_fields()}
    assert {entry["name"] for entry in container["env"]} <= known
    assert container["command"] == ["edgewise", "cloud"]
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert labels == service["spec"]["selector"] == stateful["spec"]["selector"]["matchLabels"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    claims = {claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]}
    assert mounts == claims | {volume["name"] for volume in stateful["spec"]["template"]["spec"]["volumes"]}
    (metric,) = scaler["spec"]["metrics"]
    metrics = Metrics(process=False)
    CloudMetrics(metrics)
    assert f"\n{metric['pods']['metric']['name']}{{" in metrics.render()[0].decode()


def test_metrics_on_the_page_exist() -> None:
    metrics = Metrics(process=False)
    CloudMetrics(metrics)
    text = metrics.render()[0].decode()
    for name in re.findall(r"`(edgewise_jobs_\w+)`", PAGE):
        assert f"# TYPE {name} " in text, name


async def test_every_route_is_on_the_page(tmp_path: Path) -> None:
    async with cloud_engine(tmp_path) as cloud:
        paths = (await cloud.get("/openapi.json")).json()["paths"]
    table = {
        name.replace("?from=attempt.offset", "") for name in re.findall(r"^\| `([A-Z]+ /\S+)` ", PAGE, re.MULTILINE)
    }
    routes = {
        f"{method.upper()} {path}"
        for path, item in paths.items()
        for method in item
        if path.startswith(("/edgewise/v1/jobs", "/edgewise/v1/blobs")) or path == "/edgewise/v1/cloud"
    }
    assert routes == table
