"""`edgewise bench offload` on two real processes with tiny models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from edgewise.bench.machines import linked, sharing_home
from edgewise.bench.offload import NETS, Net, OffloadBench, OffloadPlan, cells
from edgewise.bench.offload_shown import elsewhere, line, markdown, plot
from edgewise.cli.main import main
from edgewise.core.errors import NotFound
from edgewise.models.diffusion.starter.tiny import make_tiny_pictures
from tests.e2e.pair import ONE_THREAD
from tests.e2e.service import import_model, import_tiny, new_home

PLAN = OffloadPlan(model="tiny", picture_model="pictures", answers=1, pictures=1, prompt_tokens=32, answer_tokens=8)


@pytest.fixture
def home() -> Iterator[Path]:
    with new_home(starter=False) as folder:
        import_tiny(folder)
        source = make_tiny_pictures(folder / "source")
        import_model(folder, source, "pictures", "diffusion")
        yield folder


def test_every_line_is_measured_where_it_should_be_and_over_the_link_that_it_names(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ONE_THREAD.items():
        monkeypatch.setenv(name, value)
    sides = [sharing_home(tmp_path / side, home / "models") for side in ("device", "cloud")]
    told: list[tuple[str, int, int]] = []
    with linked(sides[0], sides[1], "tiny") as (device, link):
        bench = OffloadBench(PLAN, device.url, link, nets=NETS[:1], notify=lambda *step: told.append(step))
        asyncio.run(bench.run())
        with pytest.raises(NotFound, match="'absent'"):
            asyncio.run(OffloadBench(OffloadPlan(model="absent"), device.url).run())
        flags = ["--device", device.url, "--model", "tiny", "--picture-model", "", "--answers", "1", "--json"]
        files = ["--out", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.svg")]
        with pytest.raises(SystemExit) as ended:
            main(["bench", "offload", *flags, *files])
    rows = {(row["work"], row["mode"], row["link"]): row for row in bench.rows}
    assert len(rows) == len(bench.rows) == 2 + 4
    assert told[-1] == ("", 6, 6)
    for (_, mode, _), row in rows.items():
        assert (row["good"], sum(row["made"].values()), row["errors"]) == (1, 1, {})
        if mode != "hybrid":
            assert set(row["made"]) == {mode}
        assert (row["up_bytes"]["mean"] > 0) == (row["down_bytes"]["mean"] > 0) == ("cloud" in row["made"])
    slow = rows["text", "cloud", NETS[0].name]
    assert slow["first_s"]["p50"] > 2 * 0.060  # handed over, then read: two round trips
    assert slow["crossed_up_bytes"] >= slow["up_bytes"]["mean"] > 100
    assert rows["picture", "cloud", NETS[0].name]["total_s"]["p50"] > 2 * 0.060
    assert ended.value.code == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads((tmp_path / "out.json").read_text())
    assert (tmp_path / "out.svg").read_text() == plot(result["rows"])
    assert [(row["mode"], row["link"]) for row in result["rows"]] == [
        ("local", None),
        ("cloud", "as it is"),
        ("hybrid", "as it is"),
    ]


def test_what_is_made_here_is_measured_once() -> None:
    table = list(cells([Net("a"), Net("b")], ("text", "picture")))
    assert [(cell.kind, cell.mode) for cell in table if cell.net is None] == [("text", "local"), ("picture", "local")]
    assert len(table) == 2 + 2 * 4


SPREAD = {"mean": 0.1, "p50": 0.1, "p95": 0.1, "p99": 0.1, "max": 0.2}
ROW: dict[str, Any] = {
    "work": "text",
    "link": "slow",
    "mode": "cloud",
    "made": {"cloud": 1, "cloud+local": 1},
    "errors": {"503": 1},
    "first_s": SPREAD,
    "total_s": {**SPREAD, "p50": 0.4},
    "up_bytes": SPREAD,
    "down_bytes": None,
}


def test_a_line_that_was_made_elsewhere_is_named() -> None:
    assert line(ROW) == (
        *("text", "slow", "cloud", "1 cloud, 1 cloud+local, 1 failed"),
        *("100 ms (200)", "400 ms (200)", "0 B", "-"),
    )
    assert len(elsewhere([ROW, {**ROW, "mode": "hybrid"}])) == 1


def test_the_markdown_table_has_the_cells_of_every_line() -> None:
    head, rule, *lines = markdown([ROW, {**ROW, "mode": "hybrid"}]).splitlines()
    assert {text.count("|") for text in (head, rule, *lines)} == {9}
    assert [cell.strip() for cell in lines[0].split("|")[1:-1]] == list(line(ROW))


def test_the_plot_draws_what_was_measured_to_the_scale_of_its_panel() -> None:
    local = {**ROW, "mode": "local", "link": None, "total_s": {**SPREAD, "p50": 0.8}}
    picture = {**ROW, "work": "picture", "link": "<slow & far>", "first_s": None}
    failed = {**ROW, "mode": "hybrid", "first_s": None, "total_s": None}
    root = ElementTree.fromstring(plot([local, ROW, failed, picture]))
    ground, *bars = [float(one.attrib["width"]) for one in root.findall(".//{*}rect")]
    texts = [one.text for one in root.findall(".//{*}text")]
    whole_local, first_local, whole_cloud, first_cloud, whole_picture = bars
    assert (whole_cloud, first_cloud) == pytest.approx((whole_local / 2, whole_local / 8), abs=0.1)
    assert (first_local, whole_picture) == pytest.approx((first_cloud, whole_local), abs=0.1)
    assert ground > whole_local
    assert {"cloud, <slow & far>", "all failed", "800 ms", "400 ms, 0 B up, - down"} <= set(texts)
    assert "NaN" not in plot([])
