"""`edgewise`: puts the subcommands together and turns every expected error into one line and an exit code."""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, NoReturn

import typer

from edgewise.cli.exit_codes import ExitCode, exit_code
from edgewise.core.errors import EdgewiseError

COMMANDS = (
    *("serve", "demo", "chat", "cloud", "fleet", "device", "models", "bench", "ps", "load", "stop", "jobs"),
    *("pipelines", "vision", "speak", "transcribe", "voice", "plan", "receipts", "doctor", "cache", "keys", "kernels"),
    *("config", "install"),
)
"""In the order of `edgewise --help`."""
_MODULES = {"load": "ps", "stop": "ps"}
"""Commands that share a module; all others have the one of their name."""


def version_text() -> str:
    from importlib.metadata import version

    return f"edgewise {version('edgewise')} (Python {sys.version.split()[0]})"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_text())
        raise typer.Exit


def build(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command line as a typer application, with these of its commands: only their modules are imported."""
    app = typer.Typer(
        name="edgewise",
        help="Edgewise: language models on this device behind an OpenAI-compatible API.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None: ...

    for name in names:
        module = importlib.import_module(f"edgewise.cli.{_MODULES.get(name, name)}")
        group = getattr(module, "app", None)
        if isinstance(group, typer.Typer):
            app.add_typer(group, name=name)
        else:
            app.command(name, context_settings=getattr(module, "PASS_ON", None))(getattr(module, name))
    return app


def needed(args: Sequence[str]) -> Sequence[str]:
    """The commands that a command line can mean: the one it begins with, or all, for help and for shell completion."""
    return args[:1] if args and args[0] in COMMANDS else COMMANDS


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the `edgewise` script; always ends with `SystemExit`."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            build(needed(args))(args=args, prog_name="edgewise")
        finally:
            sys.stdout.flush()  # here, where a full disk can still be reported
    except EdgewiseError as error:
        _report(error, as_json="--json" in args)
        sys.exit(exit_code(error))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to flush must not fail again
        print("edgewise: the output cannot be written: no space left on the device", file=sys.stderr)
        sys.exit(ExitCode.STORAGE)
    sys.exit(0)


def _report(error: EdgewiseError, *, as_json: bool) -> None:
    if as_json:
        line = json.dumps({"error": {"code": error.code, "message": error.message, "param": error.param}})
    else:
        line = f"edgewise: {' '.join(error.message.split())}"
    print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
