"""`edgewise`: puts the subcommands together and turns every expected error into one line and an exit code."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from edgewise.cli import (
    bench,
    cache,
    chat,
    cloud,
    config,
    demo,
    device,
    doctor,
    fleet,
    install,
    jobs,
    keys,
    models,
    pipelines,
    plan,
    ps,
    receipts,
    serve,
    speak,
    transcribe,
    vision,
    voice,
)
from edgewise.cli.exit_codes import ExitCode, exit_code
from edgewise.core.errors import EdgewiseError


def version_text() -> str:
    from importlib.metadata import version

    return f"edgewise {version('edgewise')} (Python {sys.version.split()[0]})"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_text())
        raise typer.Exit


def build() -> typer.Typer:
    """The command line as a typer application."""
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

    app.command("serve")(serve.serve)
    app.command("demo", context_settings=demo.PASS_ON)(demo.demo)
    app.command("chat")(chat.chat)
    app.add_typer(cloud.app, name="cloud")
    app.add_typer(fleet.app, name="fleet")
    app.add_typer(device.app, name="device")
    app.add_typer(models.app, name="models")
    app.add_typer(bench.app, name="bench")
    app.command("ps")(ps.ps)
    app.command("load")(ps.load)
    app.command("stop")(ps.stop)
    app.add_typer(jobs.app, name="jobs")
    app.add_typer(pipelines.app, name="pipelines")
    app.add_typer(vision.app, name="vision")
    app.command("speak")(speak.speak)
    app.command("transcribe")(transcribe.transcribe)
    app.command("voice")(voice.voice)
    app.command("plan")(plan.plan)
    app.command("receipts")(receipts.receipts)
    app.command("doctor")(doctor.doctor)
    app.add_typer(cache.app, name="cache")
    app.add_typer(keys.app, name="keys")
    app.add_typer(config.app, name="config")
    app.command("install")(install.install)
    return app


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the `edgewise` script; always ends with `SystemExit`."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            build()(args=args, prog_name="edgewise")
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
