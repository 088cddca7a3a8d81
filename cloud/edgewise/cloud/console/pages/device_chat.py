"""A conversation with one device: `infer` goes to it over MQTT, and its tokens come back as it makes them."""

from __future__ import annotations

from typing import Any

from edgewise.cloud.console.design import COMMAND_STATES, word_of
from edgewise.cloud.console.pages.device_work import receipt_line
from edgewise.cloud.console.parts import Field, Tag, button, empty, panel
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.console.words import span
from edgewise.cloud.fleet import views
from edgewise.core.errors import EdgewiseError
from edgewise.wire.fleet import Ack

TTL_S, TOTAL_S = 30.0, 600.0


async def build_chat(visit: Visit, device: views.DeviceDetail) -> None:
    Chat(visit, device).build()


class Chat:
    """One conversation; it is kept by this page alone."""

    def __init__(self, visit: Visit, device: views.DeviceDetail) -> None:
        self.visit = visit
        self.device = device
        self.messages: list[dict[str, str]] = []
        self.command_id = ""

    def build(self) -> None:
        names = [str(model["name"]) for model in self.device.models if model.get("state", "ready") == "ready"]
        if not self.visit.may("operator"):
            empty("lock", "Chat needs the role operator", "What is asked here runs on the device.")
            return
        with panel("Chat with this device", body=False) as end:
            self.talk = Tag("div", cls="chat", role="log", aria_label="Conversation", tabindex="0")
            with self.talk:
                self.hint = Tag("p", "Ask something. The request goes to the device over MQTT and is answered there; the "
                                "receipt says where each part ran.", "muted")  # fmt: skip
            with Tag("div", cls="chat-form"):
                self.text = Field(
                    "Message", kind="area", rows=2, bare=True, enter=self.send, placeholder="Message"
                ).classes("grow")
                self.go = button("Send", self.send, icon_name="send", tone="primary")
                self.stop = button("Stop", self.cancel, icon_name="stop")
                self.stop.visible = False
        with end:
            options = [("", "The device's default"), *((name, name) for name in names)]
            self.model = Field("Model", names[0] if names else "", kind="select", options=options, bare=True)

    async def send(self) -> None:
        text = self.text.text
        if not text or self.command_id:
            return
        self.messages.append({"role": "user", "content": text})
        self.text.value = ""
        self.hint.visible = False
        with self.talk:
            Tag("div", text, "say mine")
            with Tag("div", cls="say theirs"):
                said, foot = Tag("span"), Tag("span", "Sent to the device\u2026", "small muted")
        self._scroll()
        args: dict[str, Any] = {"messages": self.messages}
        if self.model.value:
            args["model"] = self.model.value
        sent = await self.visit.act(
            lambda me: self.visit.fleet.commands.send(
                me, [self.device.uid], "infer", args, ttl_s=TTL_S, total_s=TOTAL_S
            )
        )
        if not sent:
            foot.text = "It was not sent."
            self.messages.pop()
            return
        self._busy(sent[0].id)
        try:
            await self._answer(sent[0].id, said, foot)
        except EdgewiseError as error:
            foot.text = error.message
        finally:
            self._busy("")
        if said.text:
            self.messages.append({"role": "assistant", "content": said.text})
        else:
            self.messages.pop()

    async def _answer(self, command_id: str, said: Tag, foot: Tag) -> None:
        async for ack in self.visit.fleet.commands.stream(await self.visit.me(), command_id):
            whole = _whole(ack)
            if whole is not None or ack.text:
                said.text = said.text + ack.text if whole is None and ack.text else whole or said.text
                self._scroll()
            foot.text = _status(ack)

    async def cancel(self) -> None:
        command_id = self.command_id
        if command_id:
            await self.visit.act(lambda me: self.visit.fleet.commands.cancel(me, command_id))

    def _busy(self, command_id: str) -> None:
        self.command_id = command_id
        self.go.visible, self.stop.visible = not command_id, bool(command_id)

    def _scroll(self) -> None:
        self.visit.client.run_javascript(f"const e = getHtmlElement({self.talk.id}); e.scrollTop = e.scrollHeight")


def _whole(ack: Ack) -> str | None:
    """The answer at the end, as the route over HTTP would give it: pieces may have been lost on the way."""
    choices = (ack.result or {}).get("choices") or [{}]
    return (choices[0].get("message") or {}).get("content")


def _status(ack: Ack) -> str:
    if ack.state == "succeeded" and ack.result is not None:
        usage = ack.result.get("usage") or {}
        tokens = usage.get("completion_tokens")
        parts = [receipt_line(ack.result["edgewise"])] if ack.result.get("edgewise") else []
        if tokens is not None:
            parts.insert(0, f"{tokens} tokens")
        return " \u00b7 ".join(parts) or "Answered"
    if ack.reason:
        return f"{word_of(COMMAND_STATES, ack.state).word}: {ack.reason}"
    return {"running": "Answering\u2026", "queued": f"Waits for the device, {span(TTL_S)} at most"}.get(
        ack.state, word_of(COMMAND_STATES, ack.state).word
    )
