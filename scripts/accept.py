"""`make accept [NAME=answers]`: run each acceptance line of tests/accept/NAME_*.py at full count, one after the other.

Prints a table (number, command, figure, bar, verdict) and writes accept-NAME.json beside the Makefile. Exits 1 unless all pass.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "accept"


def find_lines(name: str) -> list[tuple[int, str]]:
    """(number, module) of each line, in order."""
    found = [(re.fullmatch(rf"{re.escape(name)}_(\d+)", path.stem), path) for path in FOLDER.glob("*.py")]
    return sorted((int(match[1]), f"tests.accept.{path.stem}") for match, path in found if match)


def run_line(number: int, module: str) -> dict[str, Any]:
    """The line's report; a script that died without one has failed, with its exit code as the figure."""
    command = [sys.executable, "-m", module, "--json"]
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
    last = done.stdout.strip().rpartition("\n")[2]
    try:
        report: dict[str, Any] = json.loads(last)
    except ValueError:
        report = {
            "number": number,
            "command": f"python -m {module}",
            "figure": f"died with code {done.returncode}, its message is above",
            "bar": "-",
            "passed": False,
            "seconds": round(time.monotonic() - began, 1),
        }
    return report


def table_of(name: str, reports: list[dict[str, Any]]) -> Table:
    table = Table(title=f"Acceptance: {name}", show_lines=True)
    for heading in ("#", "command", "figure", "bar", "verdict", "s"):
        table.add_column(heading, overflow="fold")
    for report in reports:
        verdict = "PASS" if report["passed"] else "FAIL"
        cells = (report["number"], report["command"], report["figure"], report["bar"], verdict, report["seconds"])
        table.add_row(*map(str, cells), style="" if report["passed"] else "red")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="make accept", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", nargs="?", default="answers")
    parser.add_argument("--only", type=int, action="append", help="run only this line; may be repeated")
    args = parser.parse_args()
    lines = [(number, module) for number, module in find_lines(args.name) if not args.only or number in args.only]
    if not lines:
        raise SystemExit(f"accept: no lines found for '{args.name}' in {FOLDER.relative_to(ROOT)}")
    reports = []
    for number, module in lines:
        print(f"accept: {args.name} {number} ({module})", flush=True)
        reports.append(run_line(number, module))
    out = ROOT / f"accept-{args.name}.json"
    machine = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "time": time.strftime("%FT%TZ", time.gmtime()),
    }
    out.write_text(json.dumps({"name": args.name, **machine, "lines": reports}, indent=2, ensure_ascii=False) + "\n")
    Console(width=None if sys.stdout.isatty() else 160).print(table_of(args.name, reports))
    print(f"accept: written to {out.name}")
    raise SystemExit(0 if all(report["passed"] for report in reports) else 1)


if __name__ == "__main__":
    main()
