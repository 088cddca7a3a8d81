"""`edgewise bench fleet`: so many simulated devices on one fleet service of this machine, whose links are cut, which say things
twice, are slow, are cloned and live in other years. Nothing may be lost, done twice or shown wrong."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from scripts.service import edgewise_command, edgewise_environment
from tests.accept.line import Line, Verdict, main

LATE_S = 3600.0
SMALL = 30
"""Up to so many devices the phases are short; it is the full count whose figures count."""


def measure(count: int) -> Verdict:
    """`count` devices."""
    short = ["--steady", "2", "--rough", "2", "--period", "1"] if count <= SMALL else []
    command = edgewise_command("bench", "fleet", "--devices", str(count), *short, "--json")
    with tempfile.TemporaryDirectory(prefix="edgewise-") as home:
        done = subprocess.run(
            command,
            env=edgewise_environment(Path(home)),
            check=False,
            stdout=subprocess.PIPE,
            text=True,
            timeout=LATE_S,
        )
    if not done.stdout.strip():
        return Verdict(figure=f"no figures, exit code {done.returncode}", passed=False)
    figures = json.loads(done.stdout)
    lost = figures["samples_lost"] + figures["commands_lost"]
    doubled = figures["samples_doubled"] + figures["commands_doubled"]
    figure = (
        f"{count} devices: {figures['faults']} faults; {lost} of {figures['samples'] + count} samples and commands lost, "
        f"{doubled} doubled, {figures['wrong_presence']} shown wrong after {figures['reconnects']} cuts; "
        f"{figures['cpu_percent']:.0f} % of a core, {figures['memory_bytes'] / 2**20:.0f} MiB, "
        f"rollout to all {figures['rollout_s']:.0f} s"
    )
    passed = figures["faults"] == 0 and figures["devices"] == count and done.returncode == 0
    return Verdict(figure=figure, passed=passed, details=figures)


LINE = Line(
    number=3,
    title="Simulated devices on one machine: telemetry, commands and presence are whole, a rollout reaches all",
    bar="0 faults",
    count=1000,
    small=SMALL,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.fleet_3")
