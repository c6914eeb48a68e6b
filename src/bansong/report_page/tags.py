"""HTML made of tags: every text is escaped, and only what a tag has made is taken as it is."""

from __future__ import annotations

from html import escape


class Markup(str):
    """HTML that is safe to stand in a page."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str) -> Markup:
    """Return an element; children that are not :class:`Markup` are escaped, attributes always are.

    An attribute ``class_`` is ``class``, ``aria_label`` is ``aria-label``.
    """
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{given}>{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Return children one after the other, escaped unless they are :class:`Markup`."""
    return Markup("".join(child if isinstance(child, Markup) else escape(str(child)) for child in children))
