"""The console with a large fleet: the first rows of the table, and an answer to a filter, in a real browser on the real service.

The service's database has 5,000 devices of every state with models, labels and newest values; nothing is connected. Paint is
what the browser's own clock says from the start of the navigation to the frame that has the rows; a filter counts from the key
press to the frame that has the new ones, the pause that waits for more typing included.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from typing import Any

from tests.accept.line import Line, NotRun, Verdict, main
from tests.e2e.console.browser import CHROMIUM, Visitor, chromium, visiting
from tests.e2e.console.child import child
from tests.e2e.console.serve import NAME, PASSWORD

DEVICES = 5000
PAINT_MS, FILTER_MS = 1500.0, 300.0
QUERIES = (
    "state:offline",
    "site:lyon",
    "model:smollm2-135m AND site:oslo",
    "line3",
    "temperature_c>70 OR state:degraded",
)

_WATCH = """
new MutationObserver(() => {
  if (window.__rows || !document.querySelector('table.data tbody tr')) return;
  requestAnimationFrame(() => { window.__rows = performance.now(); });
}).observe(document, { childList: true, subtree: true })"""
_FILTER = """
async (query) => {
  const input = document.querySelector('main input[type=search]'), count = document.querySelector('.page-sub');
  const before = count.textContent;
  const start = performance.now();
  input.value = query;
  input.dispatchEvent(new Event('input'));
  await new Promise((seen) => new MutationObserver((_, watcher) => {
    if (count.textContent !== before) { watcher.disconnect(); requestAnimationFrame(seen); }
  }).observe(count, { childList: true, characterData: true, subtree: true }));
  return performance.now() - start;
}"""


async def _look(url: str, count: int) -> dict[str, Any]:
    async with chromium() as browser, visiting(browser, url) as visitor:
        await visitor.log_in(NAME, PASSWORD)
        await visitor.page.add_init_script(_WATCH)
        paints, filters, most = [], [], 0
        for _ in range(count):
            await visitor.go("/devices")
            paints.append(float(await visitor.page.evaluate("window.__rows")))
            most = max(most, await _rows(visitor))
            for query in QUERIES:
                filters.append(float(await visitor.page.evaluate(_FILTER, query)))
                most = max(most, await _rows(visitor))
        return {"paint_ms": paints, "filter_ms": filters, "rows": most, "violations": await visitor.violations()}


async def _rows(visitor: Visitor) -> int:
    return await visitor.page.locator("table.data tbody tr").count()


def measure(count: int) -> Verdict:
    if CHROMIUM is None:
        raise NotRun("chromium is not installed (apt-get install chromium)")
    with tempfile.TemporaryDirectory() as home, child("tests.e2e.console.serve", home, str(DEVICES)) as service:
        seen = asyncio.run(_look(service.url, count))
    paint, filtered = statistics.median(seen["paint_ms"]), statistics.median(seen["filter_ms"])
    correct = seen["rows"] <= 50 and not seen["violations"]
    return Verdict(
        figure=f"first rows after {paint:.0f} ms, filter after {filtered:.0f} ms (medians); {seen['rows']} rows at most; "
        f"axe-core: {len(seen['violations'])} violations",
        passed=correct and paint <= PAINT_MS and filtered <= FILTER_MS,
        correct=correct,
        details={
            "paint_ms": [round(ms) for ms in seen["paint_ms"]],
            "filter_ms": [round(ms) for ms in seen["filter_ms"]],
            "violations": seen["violations"],
        },
    )


LINE = Line(
    number=8,
    title=f"The console's table of {DEVICES} devices: first paint and filter in a browser, and what axe-core finds",
    bar=f"first rows <= {PAINT_MS:.0f} ms, filter <= {FILTER_MS:.0f} ms, no page with all of the fleet, 0 violations",
    count=10,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.fleet_8")
