"""The import arrows of pyproject.toml, on the tree given: `python -m scripts.check_imports [TREE]`.

The tree's own source roots are put before everything else and other checkouts of the package are taken off the path,
since the namespace would otherwise be the union of both.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from importlinter.cli import EXIT_STATUS_ERROR, lint_imports

ROOT = Path(__file__).resolve().parents[1]


def use_only(tree: Path) -> None:
    """Make `edgewise` mean the packages of `tree`, and nothing else."""
    roots = [str(path.parent) for path in sorted(tree.glob("*/edgewise"))]
    others = [entry for entry in sys.path if not (Path(entry or ".").resolve() / "edgewise").is_dir()]
    sys.path[:] = [*roots, *others]


def main() -> None:
    tree = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT).resolve()
    use_only(tree)
    os.chdir(tree)
    code = lint_imports(config_filename=str(tree / "pyproject.toml"), no_cache=True, no_logo=True)
    raise SystemExit(code if code in (0, EXIT_STATUS_ERROR) else EXIT_STATUS_ERROR)


if __name__ == "__main__":
    main()
