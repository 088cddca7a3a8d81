"""`edgewise chat`: ask the running service, once or in conversation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, say
from edgewise.cli.vision import picture_url
from edgewise.core.errors import EdgewiseError
from edgewise.core.settings import load_settings

if TYPE_CHECKING:
    from edgewise.cli.chat_client import ChatClient

_HELP = "/clear forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer."


def chat(
    question: Annotated[str | None, typer.Argument(help="Ask this and end; without it a conversation begins.")] = None,
    url: Annotated[str | None, typer.Option(envvar="EDGEWISE_URL", help="Base URL of the service.")] = None,
    key: Annotated[str | None, typer.Option(envvar="EDGEWISE_API_KEY", help="API key.", show_envvar=True)] = None,
    model: Annotated[str | None, typer.Option(help="Model; default: the first that the service lists.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer in tokens.")] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, max=2.0, help="0 always takes the likeliest; default: what the model recommends."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes an answer repeatable.")] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True, dir_okay=False, help="Show this picture with the question; may be given several times."
        ),
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Chat with the running service. A question may also come through a pipe."""
    from edgewise.cli.chat_client import ChatClient

    if question is None and not sys.stdin.isatty():
        question = sys.stdin.read().strip()
    if as_json and question is None:
        raise typer.BadParameter("give a question: JSON is for one answer", param_hint="--json")
    if image and question is None:
        raise typer.BadParameter("give a question to go with it", param_hint="--image")
    settings = load_settings(config).settings
    trust = None if url else settings.tls.cert
    with ChatClient(url or settings.base_url, key=key, trust=trust) as client:
        options = {
            "model": model or client.first_model(),
            "max_completion_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
        }
        messages = [{"role": "system", "content": system}] if system else []
        if question is None:
            _converse(client, messages, options)
        else:
            asked = {"role": "user", "content": _with_pictures(question, image or ())}
            _ask(client, [*messages, asked], options, as_json=as_json)


def _with_pictures(question: str, pictures: Sequence[Path]) -> str | list[dict[str, Any]]:
    """The content of a message."""
    if not pictures:
        return question
    shown = [{"type": "image_url", "image_url": {"url": picture_url(path)}} for path in pictures]
    return [*shown, {"type": "text", "text": question}]


def _ask(client: ChatClient, messages: list[dict[str, Any]], options: dict[str, Any], *, as_json: bool = False) -> str:
    """Print one answer as it comes, and return it."""
    from edgewise.cli.chat_client import Answer

    answer = Answer()
    for piece in client.stream(messages, answer, **options):
        if not as_json:
            _write(piece)
    if as_json:
        print_json(
            {
                "model": options["model"],
                "text": answer.text,
                "finish_reason": answer.finish_reason,
                "usage": answer.usage,
                "edgewise": answer.receipt,
            }
        )
    else:
        typer.echo()
        for warning in (answer.receipt or {}).get("warnings", ()):
            say(warning)
    return answer.text


def _converse(client: ChatClient, messages: list[dict[str, str]], options: dict[str, Any]) -> None:
    import readline  # noqa: F401 (gives `input` line editing and history)

    say(f"Talking to {options['model']}.\n{_HELP}")
    start = len(messages)
    while True:
        try:
            question = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            typer.echo()
            return
        if question == "/exit":
            return
        if question == "/clear":
            del messages[start:]
        elif question == "/help":
            say(_HELP)
        elif question:
            _turn(client, messages, question, options)


def _turn(client: ChatClient, messages: list[dict[str, str]], question: str, options: dict[str, Any]) -> None:
    """One question of a conversation; it is kept only if it was answered."""
    asked = [*messages, {"role": "user", "content": question}]
    try:
        text = _ask(client, asked, options)
    except KeyboardInterrupt:
        say("\n(stopped)")
        return
    except EdgewiseError as error:
        say(f"\n{error.message}")
        return
    messages[:] = [*asked, {"role": "assistant", "content": text}]


def _write(piece: str) -> None:
    """Show text as it comes; on a terminal without the control characters that could drive it."""
    if sys.stdout.isatty():
        piece = "".join(ch for ch in piece if ch.isprintable() or ch in "\n\t")
    sys.stdout.write(piece)
    sys.stdout.flush()
