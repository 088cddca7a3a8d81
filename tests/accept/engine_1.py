"""Every family gives the logits and the greedy tokens of transformers, on random small models of many shapes."""

from __future__ import annotations

from tests.accept.line import Line, Verdict, main, progress
from tests.accept.longtail import LONG_TAIL
from tests.accept.parity import FAMILIES, TOLERANCE, Comparison

ALL = FAMILIES | LONG_TAIL


def row(family: str, found: list[Comparison]) -> str:
    worst = max(found, key=lambda each: each.difference)
    agreed, continued = (sum(getattr(each, name) for each in found) for name in ("agreed", "continued"))
    verdict = "ok" if all(each.passed for each in found) else "FAILED"
    return (
        f"{family:<28} {len(found):>3} configurations  max |difference| {worst.difference:.1e} "
        f"(logits spread by {worst.spread:.1f})  greedy {agreed}/{continued}  {verdict}"
    )


def measure(count: int) -> Verdict:
    """`count` configurations of every family."""
    rows, failed, worst = [], [], 0.0
    for family, compare in ALL.items():
        progress(family)
        found = compare(count)
        rows.append(row(family, found))
        worst = max(worst, *(each.difference for each in found))
        failed += [f"{each.family}: {each.what}" for each in found if not each.passed]
    return Verdict(
        figure=f"{len(ALL)} families x {count} configurations, {len(failed)} failed, largest difference {worst:.1e}",
        passed=not failed,
        details={"table": rows, "failed": failed},
    )


LINE = Line(
    number=1,
    title="Families give the logits and greedy tokens of transformers",
    bar=f"every difference <= {TOLERANCE}, all greedy tokens equal",
    count=5,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.engine_1")
