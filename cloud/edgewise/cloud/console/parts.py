"""What pages are made of: native HTML elements with the console's style, and a few components of its own (assets/*.js)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nicegui import ui
from nicegui.element import Element
from nicegui.elements.mixins.text_element import TextElement
from nicegui.elements.mixins.value_element import ValueElement

from edgewise.cloud.console.design import Tone, Word

Handler = Callable[..., Any]
Kind = Literal["text", "mono", "number", "link", "state", "time", "chips", "meter", "actions"]


class Tag(TextElement):
    """An HTML element. Attributes are given with underscores: `aria_label`, `for_`; False and None are left out."""

    def __init__(self, tag: str, text: str = "", cls: str = "", **attributes: Any) -> None:
        super().__init__(tag=tag, text=text)
        self.key: object = None  # of what `redraw` drew last
        if cls:
            self.classes(cls)
        for name, value in attributes.items():
            if value is not None and value is not False:
                self.props[name.strip("_").replace("_", "-")] = value


def redraw(place: Tag, draw: Callable[[], object], key: object = None) -> None:
    """What is in `place` anew, unless it was drawn with the same `key` before: focus inside is lost, so what holds a link or a
    button is drawn only if it changes."""
    if key is not None and place.key == key:
        return
    place.key = key
    place.clear()
    with place:
        draw()


def icon(name: str, cls: str = "") -> Tag:
    """A picture beside a word; screen readers skip it."""
    return Tag("span", name, f"icon {cls}", aria_hidden="true")


def state(word: Word, *, badge: bool = False, note: str = "") -> Tag:
    """A state: colour, icon and word."""
    with Tag("span", cls=f"state tone-{word.tone} {'badge' if badge else ''}", title=note or None) as tag:
        icon(word.icon)
        Tag("span", word.word)
    return tag


def button(
    text: str,
    on_click: Handler,
    *,
    icon_name: str = "",
    tone: Literal["", "primary", "danger", "quiet"] = "",
    little: bool = False,
    icon_only: bool = False,
    **attributes: Any,
) -> Tag:
    """With `icon_only` the text is its accessible name."""
    cls = " ".join(("button", tone, "little" if little else "", "icon-only" if icon_only else ""))
    name = {"aria_label": text, "title": text} if icon_only else {}
    with Tag("button", cls=cls, type="button", **name, **attributes) as tag:
        if icon_name:
            icon(icon_name)
        if not icon_only:
            Tag("span", text)
    tag.on("click", on_click, [])
    return tag


def link_button(text: str, href: str, *, icon_name: str = "", tone: str = "") -> Tag:
    with Tag("a", cls=f"button {tone}", href=href) as tag:
        if icon_name:
            icon(icon_name)
        Tag("span", text)
    return tag


@contextmanager
def page_head(title: str, sub: str = "") -> Iterator[tuple[Tag, Tag]]:
    """The page's first heading; yields the line under it, and where its buttons go."""
    with Tag("div", cls="page-head"):
        with Tag("div", cls="grow"):
            Tag("h1", title)
            under = Tag("div", sub, cls="page-sub")
        actions = Tag("div", cls="page-actions")
        yield under, actions


@contextmanager
def panel(title: str = "", *, body: bool = True) -> Iterator[Tag]:
    """A box with a heading; yields the right end of the heading (of the box, if there is none), where its controls go."""
    with Tag("section", cls="panel", aria_label=title or None) as box:
        end = box
        if title:
            with Tag("div", cls="panel-head"):
                Tag("h2", title)
                end = Tag("div", cls="end")
        with Tag("div", cls="panel-body" if body else ""):
            yield end


def empty(
    icon_name: str,
    title: str,
    text: str,
    *,
    action: tuple[str, str] | None = None,
    code: str = "",
    tag: str = "strong",
) -> None:
    """Nothing here: what that means and what to do next. `action` is a link's text and where it goes; `code` is to be run."""
    with Tag("div", cls="empty"):
        icon(icon_name)
        Tag(tag, title)
        Tag("p", text)
        if code:
            Tag("code", code, "command")
        if action:
            link_button(action[0], action[1], tone="primary")


def no_device(admin: bool, address: str) -> None:
    """For a fleet that nothing has joined yet; only an `admin` can change that. `address` is the fleet's, as devices reach it."""
    if not admin:
        empty("memory", "No device yet", "An admin of this fleet makes a claim code, with which a device joins.")
        return
    empty(
        "memory",
        "No device yet",
        "Make a claim code, then run this on the device:",
        code=f"edgewise device enroll --fleet {address} --code THE-CODE",
        action=("Make a claim code", "/people#claim-codes"),
    )


def notice(tone: Tone, text: str, icon_name: str = "info") -> Tag:
    with Tag("div", cls=f"notice tone-{tone}", role="status") as tag:
        icon(icon_name, f"tone-{tone}")
        Tag("div", text, "grow")
    return tag


def facts(pairs: Sequence[tuple[str, str]]) -> None:
    with Tag("dl", cls="facts"):
        for name, value in pairs:
            Tag("dt", name)
            Tag("dd", value or "\u2013")


def chips(labels: Mapping[str, Any]) -> None:
    with Tag("span", cls="chips"):
        for text in label_texts(labels):
            Tag("span", text, "chip")


def label_texts(labels: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in sorted(labels.items())]


class TimeAgo(Element, component="assets/time_ago.js"):
    """A moment (seconds since 1970) in relative words, with the whole time on hover."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.props["at"] = at

    def set(self, at: float) -> None:
        self.props["at"] = at


@dataclass(frozen=True, slots=True)
class Column:
    """Of a `Table`. A cell's value is, by kind: "link" `{text, href, sub?}`, "state" `Word.cell()`, "time" seconds since 1970,
    "chips" a list, "meter" `{share, text, tone}`, "actions" a list of `{action, label, tone?}`, else a text.

    `sort` is the name that the server sorts by; `narrow`: also shown on narrow screens; `wrap`: in several
    lines; `clip`: cut where it is too long, whole on hover.
    """

    key: str
    label: str
    kind: Kind = "text"
    sort: str = ""
    narrow: bool = True
    wrap: bool = False
    clip: bool = False


class Table(Element, component="assets/data_table.js"):
    """One page of rows, which the server chose and sorted; each row has an `id`, and a `name` to be read out."""

    def __init__(
        self,
        label: str,
        columns: Sequence[Column],
        *,
        sort: str = "",
        on_sort: Callable[[str], Awaitable[None]] | None = None,
        on_pick: Callable[[list[str]], Any] | None = None,
        on_action: Callable[[str, str], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__()
        self.props.update(label=label, columns=[asdict(column) for column in columns], rows=[], sort=sort, picked=[])
        self.props["selectable"] = on_pick is not None
        if on_sort is not None:
            self.on("sort", lambda event: on_sort(str(event.args)))
        if on_pick is not None:
            self.on("pick", lambda event: on_pick([str(uid) for uid in event.args]))
        if on_action is not None:
            self.on("action", lambda event: on_action(str(event.args["id"]), str(event.args["action"])))

    def show(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.props["rows"] = list(rows)

    def set_sort(self, sort: str) -> None:
        self.props["sort"] = sort

    def set_picked(self, ids: Sequence[str]) -> None:
        self.props["picked"] = list(ids)


class Field(ValueElement[Any], component="assets/field.js"):
    """A labelled input. `enter` is called at the Enter key."""

    LOOPBACK = False  # what is typed is kept in the browser at once: drawing anew must not show an older value

    def __init__(
        self,
        label: str,
        value: Any = "",
        *,
        kind: Literal["text", "search", "password", "number", "area", "code", "select", "check"] = "text",
        options: Sequence[tuple[str, str]] = (),
        hint: str = "",
        placeholder: str = "",
        rows: int = 4,
        bare: bool = False,
        enter: Handler | None = None,
        on_change: Handler | None = None,
        throttle: float = 0.0,
    ) -> None:
        super().__init__(value=value, on_value_change=on_change, throttle=throttle)
        self.props.update(kind=kind, label=label, hint=hint, placeholder=placeholder, rows=rows, bare=bare, fault="")
        self.props["options"] = [{"value": option, "label": text} for option, text in options]
        self.props["enters"] = enter is not None
        if enter is not None:
            self.on("enter", enter, [])

    @property
    def text(self) -> str:
        return str(self.value or "").strip()

    def number(self) -> float | None:
        """What was typed, or None; a text that is no number is shown as a fault and is None too."""
        self.fault("")
        if not self.text:
            return None
        try:
            return float(self.text)
        except ValueError:
            self.fault("This is not a number.")
            return None

    def fault(self, text: str) -> None:
        """Shown under the input and read out; "" takes it away."""
        self.props["fault"] = text


class LineChart(Element, component="assets/line_chart.js"):
    """One value over time: its mean, and a band from least to most."""

    def __init__(self, label: str, unit: str, digits: int, floor: float | None) -> None:
        super().__init__()
        self.props.update(label=label, unit=unit, digits=digits, floor=floor, points=[], since=0, until=1)

    def show(self, points: Sequence[Sequence[float]], since: float, until: float) -> None:
        """Points are `(at, mean, least, most)`."""
        self.props.update(points=[list(point) for point in points], since=since, until=until)
        self.update()


@contextmanager
def dialog(title: str, *, wide: bool = False) -> Iterator[tuple[ui.dialog, Tag]]:
    """A dialog to be filled and awaited; yields it, and the place of its buttons."""
    with ui.context.client.content:  # not where the button is: that may be drawn anew while the dialog is open
        box = ui.dialog()
    box.props(f'aria-label="{title.replace(chr(34), "")}"')
    with box, Tag("div", cls=f"dialog {'wide' if wide else ''}"):
        with Tag("div", cls="dialog-head"):
            Tag("h2", title)
        body = Tag("div", cls="dialog-body stack")
        foot = Tag("div", cls="dialog-foot")
        with body:
            yield box, foot


async def ask(title: str, text: str, yes: str, *, danger: bool = True) -> bool:
    """A question before something that cannot be taken back."""
    with dialog(title) as (box, foot):
        Tag("p", text)
        with foot:
            button("Cancel", lambda: box.submit(False), autofocus=True)
            button(yes, lambda: box.submit(True), tone="danger" if danger else "primary")
    answer = bool(await box)
    box.delete()
    return answer


async def show_secret(title: str, text: str, secret: str) -> None:
    """A secret that is shown this once."""
    with dialog(title) as (box, foot):
        Tag("p", text)
        Tag("code", secret, "secret")
        with foot:
            Tag("button", "Copy", "button", type="button", data_act="copy", data_text=secret)
            button("Done", lambda: box.submit(True), tone="primary")
    await box
    box.delete()
