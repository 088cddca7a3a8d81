"""Something done to several devices: a confirmation that shows exactly which, then the action on just those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgewise.cloud.console.design import DEVICE_STATES, word_of
from edgewise.cloud.console.parts import Field, Tag, button, dialog, icon, redraw
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.console.words import number, plural
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.views import DeviceDetail
from edgewise.core.errors import EdgewiseError

_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Action:
    """What can be done to several devices at once by a command."""

    op: str
    label: str
    icon: str
    question: str
    danger: bool = False


ACTIONS = (
    Action("ping", "Ping", "network_ping", "Each device answers; nothing is changed."),
    Action("diagnose", "Diagnose", "troubleshoot", "Each device checks itself and reports; it goes on working."),
    Action("drain", "Drain", "hourglass_bottom", "Each device ends its requests and takes no new ones.", danger=True),
    Action("restart", "Restart", "restart_alt", "The service of each device restarts; streams that are open continue after it.",
           danger=True),
)  # fmt: skip


Section = tuple[str, Sequence[str]]
"""A heading, and the devices under it."""


async def confirm_devices(visit: Visit, title: str, text: str, uids: Sequence[str], yes: str, *, danger: bool) -> bool:
    """Asks, with every device that would be touched by name; those away are marked, since they act when they are back."""
    return await confirm_sections(visit, title, text, [("", uids)], yes, danger=danger)


async def confirm_sections(
    visit: Visit, title: str, text: str, sections: Sequence[Section], yes: str, *, no: str = "Cancel", danger: bool
) -> bool:
    """The same with devices under several headings."""
    total = sum(len(uids) for _, uids in sections)
    with dialog(title, wide=len(sections) > 1) as (box, foot):
        Tag("p", text)
        Tag("h3", f"{plural(total, 'device')} will be touched")
        lists = [_Touched(visit, heading, uids) for heading, uids in sections]
        with foot:
            button(no, lambda: box.submit(False))
            button(yes, lambda: box.submit(True), tone="danger" if danger else "primary")
    for touched in lists:
        await touched.show_more()
    answer = bool(await box)
    box.delete()
    return answer


class _Touched:
    """Devices by name, so many at a time."""

    def __init__(self, visit: Visit, heading: str, uids: Sequence[str]) -> None:
        self._visit, self._uids, self._shown = visit, uids, 0
        if heading:
            with Tag("div", cls="line"):
                Tag("strong", heading)
                Tag("span", plural(len(uids), "device"), "muted")
        name = f"Devices of {heading}" if heading else "Devices that will be touched"
        self._list = Tag("ul", cls=f"touched {'whole' if heading else ''}", tabindex="0", aria_label=name)
        self._list.visible = bool(uids)
        self._more = Tag("div", cls="line")

    async def show_more(self) -> None:
        part = self._uids[self._shown : self._shown + _SHOWN]
        self._shown += len(part)
        await _list(self._visit, self._list, part)
        left = len(self._uids) - self._shown
        redraw(self._more, lambda: self._rest(left) if left else None)

    def _rest(self, left: int) -> None:
        Tag("span", f"{number(self._shown)} of {number(len(self._uids))} shown", "muted")
        button(f"Show {min(_SHOWN, left)} more", self.show_more, little=True)


async def _list(visit: Visit, list_: Tag, uids: Sequence[str]) -> None:
    try:
        by_uid = await visit.devices(uids)
    except EdgewiseError as error:
        visit.complain(error.message)
        by_uid = {}
    with list_:
        for uid in uids:
            device = by_uid.get(uid)
            word = word_of(DEVICE_STATES, device.state if device else "never-seen")
            with Tag("li"):
                icon(word.icon, f"tone-{word.tone}")
                Tag("span", (device.name or uid) if device else uid)
                if word.word != "Online":
                    Tag("span", word.word.lower(), "small muted")


async def send(visit: Visit, action: Action, uids: Sequence[str]) -> bool:
    """Asks, then sends one command to each; the page of the batch shows how they go."""
    if not await confirm_devices(visit, f"{action.label} {plural(len(uids), 'device')}?", action.question, uids, action.label,
                                 danger=action.danger):  # fmt: skip
        return False
    sent = await visit.act(lambda me: visit.fleet.commands.send(me, uids, action.op))
    if not sent:
        return False
    target = f"/batches/{sent[0].batch_id}" if sent[0].batch_id else f"/commands/{sent[0].id}"
    visit.client.open(target)
    return True


async def set_label(visit: Visit, uids: Sequence[str]) -> bool:
    """Sets one label on each, or takes it away."""
    with dialog("Set a label") as (box, foot):
        with Tag("div", cls="fields"):
            key = Field("Label", placeholder="site")
            value = Field("Value", placeholder="lyon", hint="Empty takes the label away.")

        def submit() -> None:
            key.fault("" if key.text else "Name the label.")
            if key.text:
                box.submit(True)

        with foot:
            button("Cancel", lambda: box.submit(False))
            button("Next", submit, tone="primary")
    go, name, text = bool(await box), key.text, value.text
    box.delete()
    if not go:
        return False
    what = f"The label {name} becomes {text}." if text else f"The label {name} is taken away."
    if not await confirm_devices(visit, "Set a label?", what, uids, "Set", danger=False):
        return False
    for uid in uids:
        done = await visit.act(lambda me, uid=uid: _label(visit, me, uid, name, text))  # type: ignore[misc]
        if done is None:
            return False
    visit.tell(f"Label {name} set on {plural(len(uids), 'device')}.")
    return True


async def _label(visit: Visit, me: Actor, uid: str, name: str, text: str) -> DeviceDetail:
    registry = visit.fleet.registry
    labels = dict((await registry.device(me, uid)).labels)
    if text:
        labels[name] = text
    else:
        labels.pop(name, None)
    return await registry.edit(me, uid, labels=labels)
