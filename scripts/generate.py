"""Writes the files of the repository that are made from code or from measurements: the configuration reference, the rendered
systemd files, table and plot of `edgewise bench offload`, whose result is docs/figures/offload.json, the table of
`python -m tests.bench.gpu`, whose result is docs/figures/gpu.json, and those of `make bench`, kept as docs/figures/cpu-*.json.

`python -m scripts.generate` writes them, `--check` only says which are stale (exit code 1).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from edgewise.bench.offload_shown import markdown, plot
from edgewise.cli.install_plan import (
    CLOUD_UNIT,
    DEFAULT_EXEC,
    UNIT,
    render_cloud_unit,
    render_fleet_units,
    render_unit,
    service_toml,
    template,
)
from edgewise.core.settings_reference import markdown_reference
from scripts import gpu_table
from tests.bench import cpu_shown

ROOT = Path(__file__).resolve().parents[1]
_END = "<!-- end -->"


def generated() -> dict[str, str]:
    """Path in the repository -> content."""
    rows = json.loads((ROOT / "docs/figures/offload.json").read_text("utf-8"))["rows"]
    return {
        "docs/benchmarks.md": _benchmarks(rows),
        "docs/figures/offload.svg": plot(rows),
        "docs/configuration.md": markdown_reference(),
        f"systemd/{UNIT}": render_unit(DEFAULT_EXEC),
        f"systemd/{CLOUD_UNIT}": render_cloud_unit(DEFAULT_EXEC),
        **{f"systemd/{name}": text for name, text in render_fleet_units(DEFAULT_EXEC).items()},
        f"systemd/user/{UNIT}": render_unit(DEFAULT_EXEC, user=True),
        "systemd/sysusers.d/edgewise.conf": template("sysusers.conf"),
        "systemd/tmpfiles.d/edgewise.conf": template("tmpfiles.conf"),
        "systemd/edgewise.toml": service_toml(),
    }


def _benchmarks(rows: list[dict[str, Any]]) -> str:
    page = (ROOT / "docs/benchmarks.md").read_text("utf-8")
    gpu = json.loads((ROOT / "docs/figures/gpu.json").read_text("utf-8"))
    cpu = [json.loads(path.read_text("utf-8")) for path in sorted((ROOT / "docs/figures").glob("cpu-*.json"))]
    page = _between(page, "cpu-*", cpu_shown.markdown(cpu))
    return _between(_between(page, "offload", markdown(rows)), "gpu", gpu_table.markdown(gpu))


def _between(page: str, name: str, text: str) -> str:
    """The page with `text` between the two marks of what is made from a file of figures."""
    begin = f"<!-- made from figures/{name}.json -->\n"
    before, rest = page.split(begin)
    _, after = rest.split(_END, maxsplit=1)
    return f"{before}{begin}\n{text}\n{_END}{after}"


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = 0
    for name, content in generated().items():
        path = ROOT / name
        if path.exists() and path.read_text("utf-8") == content:
            continue
        stale += 1
        print(f"{name} is stale; run `python -m scripts.generate`" if check else f"wrote {name}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, "utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
