"""HTML that cannot be broken out of: every text is escaped when it becomes part of an element.

Owns: `Html`, `tag` and the frame of a page. Never: what a page shows.

How it works: `Html` is text that is markup already; only `tag`, `join` and `page` make it. Whatever else is put into
an element is escaped. The pages allow themselves no scripts and load nothing from elsewhere
(`CONTENT_SECURITY_POLICY`), so that even markup that slipped through could not run or send anything.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Final, TypeAlias, final

from clew.server.web.style import STYLE


@final
class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Part: TypeAlias = Html | str | int | None
"""What an element can hold: markup as it is, any other text escaped."""

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)

_VOID: Final = frozenset({"input", "br", "meta", "link", "hr"})


def escape(part: Part) -> Html:
    """Markup for a part."""
    if isinstance(part, Html):
        return part
    return Html(html.escape(str(part), quote=True)) if part is not None else Html("")


def tag(name: str, /, *parts: Part, **attributes: str | int | bool | None) -> Html:
    """One element; an attribute with None or False is left out, ``class_`` and ``for_`` lose their underscore."""
    shown = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{shown}>")
    return Html(f"<{name}{shown}>{join(parts)}</{name}>")


def join(parts: Iterable[Part]) -> Html:
    """Parts one after the other."""
    return Html("".join(escape(part) for part in parts))


def table(headers: Iterable[str], rows: Iterable[Iterable[Part]], *, empty: str) -> Html:
    """A table; a text in its place when there are no rows."""
    body = [tag("tr", *(tag("td", cell) for cell in row)) for row in rows]
    if not body:
        return tag("p", empty, class_="empty")
    head = tag("tr", *(tag("th", header, scope="col") for header in headers))
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll")


def page(title: str, *parts: Part, namespace: str, refresh_seconds: int = 0) -> str:
    """A whole document."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="refresh", content=refresh_seconds) if refresh_seconds else None,
        tag("title", f"{title} · Clew"),
        tag("link", rel="stylesheet", href=f"/ui/style.css?{STYLE.digest}"),
    )
    header = tag(
        "header",
        tag("a", "Clew", href="/ui", class_="brand"),
        tag("span", namespace, class_="namespace") if namespace else None,
        tag("a", "API", href="/api/v1/openapi.json", class_="aside"),
    )
    return f"<!DOCTYPE html>{tag('html', head, tag('body', header, tag('main', tag('h1', title), *parts)), lang='en')}"
