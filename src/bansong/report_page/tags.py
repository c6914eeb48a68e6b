"""HTML made of tags: every text is escaped, except what a tag has made."""

from __future__ import annotations

from html import escape


class Markup(str):
    """HTML that is safe to stand in a page."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str) -> Markup:
    """Return an element; children other than :class:`Markup`, and attributes, are escaped.

    ``class_`` means ``class``, ``aria_label`` means ``aria-label``.
    """
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{given}>{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Join children, escaped unless they are :class:`Markup`."""
    return Markup("".join(child if isinstance(child, Markup) else escape(str(child)) for child in children))
