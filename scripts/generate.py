"""Writes the files of the repository that are made from code or from measurements: the configuration reference, the rendered
systemd files, and table and plot of `edgewise bench offload`, whose result is docs/figures/offload.json.

`python -m scripts.generate` writes them, `--check` only says which are stale (exit code 1).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

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

ROOT = Path(__file__).resolve().parents[1]
_BEGIN, _END = "<!-- made from figures/offload.json -->\n", "<!-- end -->"


def generated() -> dict[str, str]:
    """Path in the repository -> content."""
    rows = json.loads((ROOT / "docs/figures/offload.json").read_text("utf-8"))["rows"]
    return {
        "docs/benchmarks.md": _between((ROOT / "docs/benchmarks.md").read_text("utf-8"), f"\n{markdown(rows)}\n"),
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


def _between(page: str, text: str) -> str:
    """The page with `text` between its two marks."""
    before, rest = page.split(_BEGIN)
    _, after = rest.split(_END)
    return f"{before}{_BEGIN}{text}{_END}{after}"


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
