"""`make run`: pull the models that write and draw, then `edgewise demo`, whose device goes on serving.

With `--once` the services are ended after the three acts: exit code 0 if all went well, otherwise 1 or another with the reason.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from pathlib import Path

from scripts.service import edgewise_command, free_port, port_is_free, port_owner

MODELS = ("smollm2-135m-instruct", "starter-pictures")
DEFAULT_PORT = 8400


def say(text: str) -> None:
    print(f"run: {text}", flush=True)


def default_home() -> Path:
    return Path(os.environ.get("EDGEWISE_HOME") or "~/.local/share/edgewise").expanduser()


def pull_model(name: str, home: Path) -> None:
    """Through the command line, which shows a progress bar; quick when the model is already there."""
    environment = {**os.environ, "EDGEWISE_HOME": str(home)}
    code = subprocess.run(edgewise_command("models", "pull", name), env=environment, check=False).returncode
    if code != 0:
        raise SystemExit(f"run: 'edgewise models pull {name}' failed with code {code}; its message is above.")


def choose_port(wanted: int | None) -> int:
    """The port asked for, or the default one, or a free one if something else has the default."""
    port = DEFAULT_PORT if wanted is None else wanted
    if port_is_free("127.0.0.1", port):
        return port
    if wanted is not None:
        raise SystemExit(f"run: port {port} is taken by {port_owner(port)}; name another with --port (make: PORT=).")
    other = free_port()
    say(f"port {port} is taken by {port_owner(port)}: using {other} this time")
    return other


def main() -> None:
    parser = argparse.ArgumentParser(prog="make run", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--once", action="store_true", help="end after the three acts")
    parser.add_argument("--port", type=int, help=f"port of the device (default: {DEFAULT_PORT}, or a free one)")
    parser.add_argument("--home", type=Path, default=default_home(), help="state directory")
    args, serve_flags = parser.parse_known_args()
    began = os.environ.get("MAKE_BEGAN") or str(time.time())
    for name in MODELS:
        pull_model(name, args.home)
    port = choose_port(args.port)
    flags = ["--port", str(port), "--began", began, "--out", str(args.home), *(["--once"] if args.once else [])]
    command = edgewise_command("demo", *flags, *serve_flags)
    os.execve(command[0], command, {**os.environ, "EDGEWISE_HOME": str(args.home)})  # noqa: S606 - it has the terminal now


if __name__ == "__main__":
    main()
