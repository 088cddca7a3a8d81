"""Deferred jobs that only the cloud may do, left on a device without a link, which is killed: each result arrives once.

A real device and a real cloud with a proxy between them, and a real receiver of webhooks. The link is cut, a job is accepted
(202) and waits; the device service and its engine are killed with SIGKILL and started again; the link comes back. In every
third trial the receiver fails the first delivery: it must get the very same message again, and no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

from scripts.service import DeviceService
from tests.accept.line import Line, Verdict, main, progress
from tests.e2e.pair import Pair, paired
from tests.edge.outbox.receiver import Receiver, receiving

JOBS = "/edgewise/v1/jobs"
SETTLE_S = 3.0  # after the last delivery, for one too many


def until(condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError(f"it did not come true within {seconds:.0f} s that {what}")
        time.sleep(0.05)


def kill(service: DeviceService) -> None:
    """The service and its engine at once, as a power cut would."""
    family = service.children()
    service.process.kill()
    for process in family:
        process.kill()
    service.process.wait(60)


def leave(service: DeviceService, number: int, url: str) -> dict[str, Any]:
    """A job for the cloud, accepted. Leaving it again is the same job."""
    body = {"model": "tiny", "prompt": f"job {number}", "max_tokens": 24}
    order = {"url": "/v1/completions", "body": body, "deliver": url, "where": ["cloud"], "key": f"job-{number}"}
    told = httpx.post(f"{service.url}{JOBS}", json=order, timeout=60)
    if told.status_code != 202:
        raise AssertionError(f"the job was not accepted: {told.status_code} {told.text}")
    job: dict[str, Any] = told.json()
    return job


def show(service: DeviceService, id: str) -> dict[str, Any]:
    job: dict[str, Any] = httpx.get(f"{service.url}{JOBS}/{id}", timeout=60).json()
    return job


def trial(pair: Pair, service: DeviceService, receiver: Receiver, number: int) -> tuple[DeviceService, str]:
    """One job over a cut link and a kill; the service that runs then, and the job's id."""
    pair.link.cut()
    id = str(leave(service, number, receiver.url)["id"])
    until(lambda: show(service, id)["waiting"] is not None, "the job waits for the link")
    kill(service)
    receiver.answers = [500] if fails(number) else []
    restarted = DeviceService(pair.device_home, ["--model", "tiny"], environment=pair.settings)
    restarted.start()
    try:
        restarted.wait_ready()
        if leave(restarted, number, receiver.url)["id"] != id:
            raise AssertionError("the same key is another job after the restart")
        pair.link.restore()
        until(lambda: show(restarted, id)["delivery"]["state"] == "delivered", "the result is delivered")
    except BaseException:
        restarted.stop()
        raise
    return restarted, id


def fails(number: int) -> bool:
    """Whether the receiver fails the first delivery of this trial."""
    return number % 3 == 0


def faults(receiver: Receiver, id: str, number: int) -> list[str]:
    """What is wrong with the deliveries of one job."""
    got = [delivery for delivery in receiver.got if delivery.id == id]
    expected = 2 if fails(number) else 1
    found = [] if len(got) == expected else [f"{len(got)} deliveries instead of {expected}"]
    if len({delivery.body for delivery in got}) > 1:
        found.append("two different results")
    for delivery in got[:1]:
        data = delivery.event["data"]
        places = [stage["where"] for stage in (data["receipt"] or {"stages": []})["stages"]]
        if (data["state"], places) != ("succeeded", ["cloud"]):
            found.append(f"{data['state']} at {places}: {data['response']}")
    return found


def measure(count: int) -> Verdict:
    """`count` jobs, one after the other."""
    jobs: list[str] = []
    with receiving() as receiver, paired(OUTBOX__WEBHOOK_HOSTS="http://127.0.0.1") as pair:
        service = pair.device
        try:
            for number in range(count):
                service, id = trial(pair, service, receiver, number)
                jobs.append(id)
                progress(f"{number + 1} of {count} jobs")
            time.sleep(SETTLE_S)
        finally:
            service.stop()
        wrong = {id: found for number, id in enumerate(jobs) if (found := faults(receiver, id, number))}
    strays = len({delivery.id for delivery in receiver.got} - set(jobs))
    figure = f"{len(jobs)} jobs over {len(jobs)} kills: {len(jobs) - len(wrong)} results once, {len(wrong)} not, {strays} strays"
    return Verdict(figure=figure, passed=not wrong and not strays and len(jobs) == count, details={"wrong": wrong})


LINE = Line(
    number=8,
    title="Deferred jobs accepted without a link, the device service killed and restarted, the link back: every result is "
    "delivered, and once",
    bar="every result once",
    count=12,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.cloud_8")
