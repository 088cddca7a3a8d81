"""`python -m tests.foreign [openai schemathesis clients llamacpp] [--cases N] [--json] [--write]`.

Runs suites that others wrote against a real service. `--write` puts the outcome into docs/compatibility.md. Exits 1 if a failure
has no explanation or anything was answered with a status of 500 or above.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict

from tests.foreign import client_suites, llamacpp, openai_python, schemathesis
from tests.foreign.page import table_of, write_page
from tests.foreign.suite import Report
from tests.foreign.tools import NotAvailable


def suites(cases: int) -> Mapping[str, Callable[[], list[Report]]]:
    return {
        "openai": lambda: [openai_python.run()],
        "schemathesis": lambda: schemathesis.run(cases),
        "clients": client_suites.run,
        "llamacpp": lambda: [llamacpp.run()],
    }


def main() -> None:
    known = suites(0)
    parser = argparse.ArgumentParser(prog="python -m tests.foreign", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="suite", help=f"of {', '.join(known)}; all by default")
    parser.add_argument("--cases", type=int, default=2000, help="requests of schemathesis to each document")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    parser.add_argument("--write", action="store_true", help="write the outcome into docs/compatibility.md")
    args = parser.parse_args()
    if unknown := set(args.names) - set(known):
        parser.error(f"unknown suite {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    reports: list[Report] = []
    for name in args.names or known:
        print(f"foreign: {name}", file=sys.stderr, flush=True)
        try:
            reports += suites(args.cases)[name]()
        except NotAvailable as reason:
            reports.append(Report(suite=name, version="-", passed=0, unexplained={"not run": str(reason)}))
    if args.json:
        print(json.dumps([asdict(report) for report in reports], indent=2))
    else:
        print(table_of(reports))
        for report in reports:
            for name, message in report.unexplained.items():
                print(f"\n{report.suite}: {name}\n  {message}")
    if args.write:
        write_page(reports)
    raise SystemExit(0 if all(report.good for report in reports) else 1)


if __name__ == "__main__":
    main()
