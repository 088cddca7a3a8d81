"""A conversation with one device: `infer` goes to it over MQTT, and its tokens come back as it makes them."""

from __future__ import annotations

from typing import Any

from nicegui import background_tasks

from edgewise.cloud.console.design import COMMAND_STATES, word_of
from edgewise.cloud.console.pages.device_work import receipt_line
from edgewise.cloud.console.parts import Field, Tag, button, empty, notice, panel, redraw
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.console.words import span
from edgewise.cloud.fleet import views
from edgewise.core.errors import EdgewiseError
from edgewise.wire.fleet import Ack

TTL_S, TOTAL_S = 30.0, 600.0
_KEPT = (
    "Kept for you and this device in the fleet service's memory until you log out, clear it, or the service restarts. "
    "The commands that carried it stay under Commands, as every command does."
)


async def build_chat(visit: Visit, device: views.DeviceDetail) -> None:
    Chat(visit, device).build()


class Chat:
    """One open page of a conversation. What was said is the session's, so it is there again after a reload."""

    def __init__(self, visit: Visit, device: views.DeviceDetail) -> None:
        self.visit = visit
        self.device = device
        self.said = visit.console.conversations.of(visit.token, device.uid)

    def build(self) -> None:
        names = [str(model["name"]) for model in self.device.models if model.get("state", "ready") == "ready"]
        if not self.visit.may("operator"):
            empty("lock", "Chat needs the role operator", "What is asked here runs on the device.")
            return
        if self.device.state in ("offline", "never-seen", "offline-expected"):
            notice("warn", f"The device is away: a message waits for it {span(TTL_S)} at most.", "cloud_off")
        with panel("Chat with this device", body=False) as end:
            self.talk = Tag("div", cls="chat", role="log", aria_label="Conversation", tabindex="0")
            with Tag("div", cls="chat-form"):
                self.text = Field(
                    "Message", kind="area", rows=2, bare=True, enter=self.send, placeholder="Message"
                ).classes("grow")
                self.go = button("Send", self.send, icon_name="send", tone="primary")
                self.stop = button("Stop", self.cancel, icon_name="stop")
            Tag("p", _KEPT, "small muted", style="padding:0 16px 12px")
        with end:
            options = [("", "The device's default"), *((name, name) for name in names)]
            self.model = Field("Model", names[0] if names else "", kind="select", options=options, bare=True)
            button("Clear", self.clear, icon_name="delete_sweep", little=True)
        self._draw()
        self._busy()
        if self.said.command_id:  # asked before this page was opened
            background_tasks.create(self._take_up(), name="console chat")

    def _draw(self) -> None:
        redraw(self.talk, self._lines)
        self._scroll()

    def _lines(self) -> None:
        if not self.said.lines:
            Tag("p", "Ask something. The request goes to the device over MQTT and is answered there; the receipt says where "
                "each part ran.", "muted")  # fmt: skip
        for line in self.said.lines:
            if line.role == "user":
                Tag("div", line.content, "say mine")
            else:
                with Tag("div", cls="say theirs"):
                    Tag("span", line.content)
                    Tag("span", line.note, "small muted")

    async def send(self) -> None:
        text, said = self.text.text, self.said
        if not text or said.command_id:
            return
        said.ask(text)
        args: dict[str, Any] = {"messages": said.messages()}
        if self.model.value:
            args["model"] = self.model.value
        sent = await self.visit.act(
            lambda me: self.visit.fleet.commands.send(
                me, [self.device.uid], "infer", args, ttl_s=TTL_S, total_s=TOTAL_S
            )
        )
        if not sent:  # the page says why; the text is still in its field
            said.lines.pop()
            return
        self.text.value = ""
        said.command_id = sent[0].id
        self._draw()
        await self._follow("Sent to the device\u2026")

    async def _take_up(self) -> None:
        with self.visit.client:
            await self._follow("Answering\u2026")

    async def _follow(self, status: str) -> None:
        """Shows the answer as it comes, and writes it down at its end, whether the page is still there or not."""
        command_id, said = self.said.command_id, self.said
        with self.talk, Tag("div", cls="say theirs"):
            shown, foot = Tag("span"), Tag("span", status, "small muted")
        self._busy()
        self._scroll()
        text, note = "", ""
        try:
            async for ack in self.visit.fleet.commands.stream(await self.visit.me(), command_id):
                whole = _whole(ack)
                text, note = text + (ack.text or "") if whole is None else whole, _status(ack)
                self._show(shown, text, foot, note)
        except EdgewiseError as error:
            note = error.message
            self._show(shown, text, foot, note)
        finally:
            said.answer(command_id, text, note)
            if not self.visit.client.is_deleted:
                self._busy()

    def _show(self, shown: Tag, text: str, foot: Tag, note: str) -> None:
        if self.visit.client.is_deleted or shown.is_deleted:
            return  # left or cleared; the answer is written down all the same
        foot.text = note
        if shown.text != text:
            shown.text = text
            self._scroll()

    async def clear(self) -> None:
        await self.cancel()
        self.said = self.visit.console.conversations.clear(self.visit.token, self.device.uid)
        self._draw()
        self._busy()

    async def cancel(self) -> None:
        if command_id := self.said.command_id:
            await self.visit.act(lambda me: self.visit.fleet.commands.cancel(me, command_id))

    def _busy(self) -> None:
        self.go.visible, self.stop.visible = not self.said.command_id, bool(self.said.command_id)

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
