"""`edgewise bench`: how fast a server answers under load, measured from outside."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast
from urllib.parse import urlsplit

import typer

from edgewise.cli import bench_fleet, bench_offload
from edgewise.cli.exit_codes import ExitCode
from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, say
from edgewise.core.addresses import is_loopback
from edgewise.core.errors import InvalidRequest
from edgewise.core.files import translate_os_errors
from edgewise.core.settings import load_settings

if TYPE_CHECKING:
    from edgewise.bench.request import Endpoint, Target
    from edgewise.bench.serve import Plan

app = typer.Typer(
    name="bench", help="Measure a server under load, what offloading costs, and a fleet.", no_args_is_help=True
)
app.command()(bench_offload.offload)
app.command()(bench_fleet.fleet)


@app.callback()
def _bench() -> None: ...


@app.command()
def serve(
    url: Annotated[
        str | None,
        typer.Option(envvar="EDGEWISE_URL", help="Base URL of any OpenAI-compatible server; ours by default."),
    ] = None,
    key: Annotated[str | None, typer.Option(envvar="EDGEWISE_API_KEY", help="API key.", show_envvar=True)] = None,
    model: Annotated[str, typer.Option(help="Model; default: the first that the server lists.")] = "",
    rate: Annotated[
        float | None, typer.Option(help="Open loop: requests a second on average, arriving at random (Poisson).")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Closed loop: requests in flight; default 1.")] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="End after so many; default 20 without --duration.")
    ] = None,
    duration: Annotated[float | None, typer.Option(help="Send no more after so many seconds.")] = None,
    prompt_tokens: Annotated[str, typer.Option(help="Tokens of a prompt: 512, or 128:1024 drawn evenly.")] = "128",
    answer_tokens: Annotated[str, typer.Option(help="Most tokens of an answer, likewise.")] = "64",
    source: Annotated[
        Path | None,
        typer.Option("--from", help="JSON lines with prompt, messages or prompt_tokens, and answer_tokens."),
    ] = None,
    endpoint: Annotated[str, typer.Option(help="chat or completions.")] = "chat",
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Ask for answers of full length (an extension of some servers).")
    ] = False,
    field: Annotated[list[str] | None, typer.Option(help="Further field of each request, NAME=JSON.")] = None,
    max_field: Annotated[
        str | None, typer.Option(help="Field with the longest answer, for servers with another.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of arrivals, lengths and prompts.")] = 0,
    warmup: Annotated[int, typer.Option(min=0, help="Requests that are not counted.")] = 1,
    timeout: Annotated[float, typer.Option(help="Longest silence in seconds.")] = 300.0,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Load a server and report time to first token, time between chunks and by token, tokens and requests a second, and errors.

    Counts of tokens are those of the server's usage. A chunk brings text of one token or more, as the server sends it. In
    the open loop every time counts from the moment a request was due, not from when it could be sent.
    """
    from edgewise.bench.load import Limits
    from edgewise.bench.request import Target
    from edgewise.bench.serve import Plan
    from edgewise.bench.work import parse_lengths

    _check(rate, concurrency, duration, timeout, endpoint)
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise InvalidRequest(f"--out {out} is not a file in a folder that exists.")
    plan = Plan(
        rate=rate,
        concurrency=None if rate is not None else concurrency or 1,
        limits=Limits(requests=requests or (None if duration is not None else 20), duration_s=duration),
        prompt=parse_lengths(prompt_tokens, "--prompt-tokens"),
        answer=parse_lengths(answer_tokens, "--answer-tokens"),
        source=source,
        seed=seed,
        warmup=warmup,
    )
    settings = load_settings(config).settings
    target = Target(
        base_url=with_version(url or settings.base_url),
        model=model,
        endpoint=cast("Endpoint", endpoint),
        fields=_fields(field or (), ignore_eos=ignore_eos),
        max_field=max_field,
    )
    trust = None if url else settings.tls.cert
    _run(plan, target, _client(target.base_url, key, timeout, trust), out, as_json=as_json)


def with_version(url: str) -> str:
    """A base URL as OpenAI's clients take it; where it has no path, that is /v1."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise InvalidRequest(f"--url {url!r} is no base URL: write http://HOST:PORT or https://HOST/PATH.")
    return url.rstrip("/") if parts.path.strip("/") else f"{url.rstrip('/')}/v1"


def _check(rate: float | None, concurrency: int | None, duration: float | None, timeout: float, endpoint: str) -> None:
    if rate is not None and concurrency is not None:
        raise InvalidRequest("Give --rate (open loop) or --concurrency (closed loop), not both.")
    for option, value in (("--rate", rate), ("--duration", duration), ("--timeout", timeout)):
        if value is not None and not 0 < value < 1e9:
            raise InvalidRequest(f"{option} {value} must be above 0.")
    if endpoint not in {"chat", "completions"}:
        raise InvalidRequest(f"--endpoint {endpoint!r} is not one of chat, completions.")


def _fields(texts: list[str] | tuple[()], *, ignore_eos: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"ignore_eos": True} if ignore_eos else {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            fields[name] = json.loads(value)
        except ValueError as error:
            raise InvalidRequest(f"--field {text!r}: write NAME=JSON, e.g. temperature=0.") from error
        if not name or not equals:
            raise InvalidRequest(f"--field {text!r}: write NAME=JSON, e.g. temperature=0.")
    return fields


def _client(url: str, key: str | None, timeout: float, trust: Path | None) -> dict[str, Any]:
    host = urlsplit(url).hostname or ""
    verify: bool | ssl.SSLContext = True
    if trust is not None:  # the service's own certificate is known; the name by which it is reached need not be in it
        verify = ssl.create_default_context(cafile=str(trust))
        verify.check_hostname = False
    return {
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "timeout": timeout,
        "verify": verify,
        "trust_env": host != "localhost" and not is_loopback(host),  # a proxy cannot reach our loopback
    }


def _run(plan: Plan, target: Target, client: dict[str, Any], out: Path | None, *, as_json: bool) -> None:
    from edgewise.bench.load import Run
    from edgewise.bench.serve import document, run_plan
    from edgewise.cli.bench_view import print_report, progress

    run = Run()
    interrupted = False
    with progress(run, plan, show=not as_json):
        try:
            result = run_plan(plan, target, run, **client)
        except KeyboardInterrupt:
            interrupted = True
            result = document(plan, target, run, interrupted=True)
    if out is not None:
        with translate_os_errors("write", out):
            out.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    if as_json:
        print_json(result)
    else:
        print_report(result)
    if interrupted:
        say("Interrupted: the figures are those of the requests that had ended.")
        raise typer.Exit(ExitCode.INTERRUPTED)
    if result["requests"]["failed"]:
        raise typer.Exit(ExitCode.FAILURE)
