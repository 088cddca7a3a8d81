"""`edgewise demo`: a device and a cloud engine on this machine, and what they do together."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json
from edgewise.core.errors import EngineUnavailable

if TYPE_CHECKING:
    from edgewise.bench.machines import Machine
    from edgewise.cli.demo_acts import Act
    from edgewise.cli.demo_fleet import DemoFleet

PATIENCE_S = 2.0
"""Seconds that the device waits for the cut link: long enough to be seen, short enough to be watched."""

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of the command: flags that it does not know go to `edgewise serve`."""


def demo(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="End both services after the three acts.")] = False,
    port: Annotated[int | None, typer.Option(help="TCP port of the device service; a free one by default.")] = None,
    console_port: Annotated[
        int | None, typer.Option(help="TCP port of the fleet's console; 8600 by default, or a free one.")
    ] = None,
    model: Annotated[str, typer.Option(help="Text model, by its name in the store.")] = "starter",
    picture_model: Annotated[str, typer.Option(help="Picture model.")] = "starter-pictures",
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path(),
    began: Annotated[float | None, typer.Option(hidden=True)] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Answer a question here, draw a picture through a cloud engine, and cut the link in the middle of an answer.

    All services run on this machine, on loopback; the cloud engine shares the device's models, and a fleet service with its
    console and broker shows the device. Further flags go to `edgewise serve`.
    """
    from edgewise.bench.machines import end_as_interrupt, linked, sharing_home
    from edgewise.cli import demo_acts as acts
    from edgewise.core.settings import load_settings

    home = load_settings(config).settings.home
    end_as_interrupt()
    flags = [*context.args, *(["--config", str(config)] if config else [])]
    cloud = sharing_home(home / "demo-cloud", home / "models")
    show = _Show(as_json=as_json, began=began or time.time())
    try:
        with ExitStack() as stack:
            fleet = _fleet(stack, home, console_port, show)
            device, link = stack.enter_context(
                linked(
                    home,
                    cloud,
                    model,
                    flags=flags,
                    port=port,
                    settings={"EDGEWISE_CLOUD__PATIENCE_S": str(PATIENCE_S), **(fleet.settings if fleet else {})},
                    meanwhile=fleet.enrol_device if fleet else lambda: None,
                )
            )
            if fleet is not None:
                show.console(fleet.url, fleet.admin, fleet.password)
            show.ready(device.url)
            show.local(acts.local_answer(device.url, model, show.piece))
            show.picture(acts.picture(device.url, picture_model, out.absolute()))
            show.cut(acts.cut_answer(device.url, model, show.piece, show.cutting(link.cut)))
            show.receipts()
            code = device.stop() if once else _serve(device, show)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    show.line(f"demo: the service ended with code {code}")
    raise typer.Exit(code)


def _fleet(stack: ExitStack, home: Path, port: int | None, show: _Show) -> DemoFleet | None:
    """The fleet service, starting; None, and why, where there is none."""
    from edgewise.cli.demo_fleet import DemoFleet, obstacle

    folder = home / "demo-fleet"
    if (why := obstacle(folder, home)) is not None:
        show.line(f"demo: {why}")
        return None
    return stack.enter_context(DemoFleet(folder, home, port))


def _serve(device: Machine, show: _Show) -> int:
    """Wait for Ctrl-C or the service's own end; returns the exit code."""
    try:
        show.line(f"demo: serving on {device.url}/v1 (log: {device.log}); Ctrl-C ends it")
        code = device.wait()
    except KeyboardInterrupt:
        show.line("demo: ending both services")
        return device.stop()
    raise EngineUnavailable(f"the device service ended by itself with code {code}; see {device.log}")


class _Show:
    """What the person at the terminal sees; with `as_json` only the report at the end."""

    def __init__(self, *, as_json: bool, began: float) -> None:
        self._as_json = as_json
        self._began = began
        self._ready_s = 0.0
        self._acts: list[Act] = []
        self._console: dict[str, str] | None = None

    def line(self, text: str) -> None:
        if not self._as_json:
            print(text, flush=True)

    def piece(self, text: str) -> None:
        """Of an answer, as it comes."""
        if not self._as_json:
            print(text, end="", flush=True)

    def ready(self, url: str) -> None:
        self._ready_s = time.time() - self._began
        self.line(f"demo: a device on {url} and a cloud engine, linked through a wire that can be cut")
        self.line("\nAct 1: a question, answered on the device.")
        self._ask("local_answer")

    def console(self, url: str, name: str, password: str) -> None:
        self._console = {"url": url, "name": name, "password": password}
        self.line(f"demo: console on {url} (log in as {name} with {password})")

    def local(self, act: Act) -> None:
        self._end(act)
        total = time.time() - self._began
        self.line(
            f"from start to answer: {total:.1f} s (starting {self._ready_s:.1f}, answering {total - self._ready_s:.1f})"
        )
        self.line("\nAct 2: a picture, drawn by the cloud engine.")

    def picture(self, act: Act) -> None:
        self._acts.append(act)
        self.line(f"> {act.facts['prompt']}\n{act.facts['path']} ({act.facts['seconds']} s)")
        self.line("\nAct 3: an answer by the cloud engine, whose link is cut in the middle.")
        self._ask("cut_answer")

    def cutting(self, cut: Callable[[], None]) -> Callable[[], None]:
        def act() -> None:
            cut()
            self.piece(" [the link is cut] ")

        return act

    def cut(self, act: Act) -> None:
        self._end(act)
        if not act.facts["cut"]:
            self.line("the answer was over before it was long enough for its link to be cut")
        for segment in _segments(act.receipt):
            self.line(f"{segment['where']} from {segment['offset']}: {segment['why']}")

    def receipts(self) -> None:
        """All three, at the end."""
        if self._as_json:
            acts = {act.name: {**act.facts, "receipt": act.receipt} for act in self._acts}
            print_json({**acts, "console": self._console})
            return
        for number, act in enumerate(self._acts, 1):
            self.line(f"\nreceipt {number}: {json.dumps(act.receipt, indent=2, ensure_ascii=False)}")
        self.line("")

    def _ask(self, which: str) -> None:
        from edgewise.cli.demo_acts import LONG_QUESTION, QUESTION

        self.line(f"> {QUESTION if which == 'local_answer' else LONG_QUESTION}")

    def _end(self, act: Act) -> None:
        self._acts.append(act)
        facts = act.facts
        self.line(
            f"\n\n{facts['tokens']} tokens, {facts['tokens_per_s']} tokens/s, first text after {facts['first_s']:.2f} s"
        )


def _segments(receipt: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [segment for stage in receipt.get("stages", ()) for segment in stage.get("segments", ())]
