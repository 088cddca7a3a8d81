"""openai-python's own API tests, and schemathesis on OpenAI's operations and on our own document: no 5xx, nothing unexplained."""

from __future__ import annotations

from dataclasses import asdict

from tests.accept.line import Line, NotRun, Verdict, main, progress
from tests.foreign import openai_python, schemathesis
from tests.foreign.suite import Report
from tests.foreign.tools import NotAvailable

FEW = 200


def measure(count: int) -> Verdict:
    """`count`: requests of schemathesis to each document; where they are few, openai-python's synchronous client alone."""
    try:
        reports = [openai_python.run(brief=count < FEW)]
        progress(_line(reports[0]))
        for report in schemathesis.run(count):
            progress(_line(report))
            reports.append(report)
    except NotAvailable as reason:
        raise NotRun(str(reason)) from reason
    explained = sum(len(names) for report in reports for names in report.explained.values())
    figure = (
        f"openai-python {reports[0].version}: {reports[0].passed} pass, {explained} explained, "
        f"{len(reports[0].unexplained)} unexplained; "
        + "; ".join(f"{report.suite}: {report.requests} requests" for report in reports[1:])
        + f"; {sum(report.server_errors for report in reports)} answers of 5xx"
    )
    passed = all(report.good for report in reports) and all(report.requests >= count for report in reports[1:])
    return Verdict(figure=figure, passed=passed, details={"reports": [asdict(report) for report in reports]})


def _line(report: Report) -> str:
    return f"{report.suite}: {report.passed} passed, {report.requests} requests, {report.server_errors} of 5xx"


LINE = Line(
    number=2,
    title="openai-python's API tests and schemathesis find no 5xx and nothing unexplained",
    bar="every failure explained in docs/compatibility.md, 0 of 5xx in 2,000 cases each",
    count=2000,
    small=40,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.engine_2")
