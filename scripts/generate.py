"""Writes the files of the repository that are made from code: the configuration reference and the rendered systemd files.

`python -m scripts.generate` writes them, `--check` only says which are stale (exit code 1).
"""

from __future__ import annotations

import sys
from pathlib import Path

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


def generated() -> dict[str, str]:
    """Path in the repository -> content."""
    return {
        "docs/configuration.md": markdown_reference(),
        f"systemd/{UNIT}": render_unit(DEFAULT_EXEC),
        f"systemd/{CLOUD_UNIT}": render_cloud_unit(DEFAULT_EXEC),
        **{f"systemd/{name}": text for name, text in render_fleet_units(DEFAULT_EXEC).items()},
        f"systemd/user/{UNIT}": render_unit(DEFAULT_EXEC, user=True),
        "systemd/sysusers.d/edgewise.conf": template("sysusers.conf"),
        "systemd/tmpfiles.d/edgewise.conf": template("tmpfiles.conf"),
        "systemd/edgewise.toml": service_toml(),
    }


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
