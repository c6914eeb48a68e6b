"""Collects the messages of the code, and checks that each is said in Korean.

A message is what :mod:`bansong.base.messages` translates, and every help text of the command line. ``--write`` adds new
messages to the ``.po`` file without a translation, drops those that are gone, and compiles the ``.mo`` file.
"""

from __future__ import annotations

import ast
import gc
import inspect
import io
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from string import Formatter

from babel.messages import pofile
from babel.messages.catalog import Catalog, Message
from babel.messages.mofile import read_mo, write_mo

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "bansong"
CATALOGUE = PACKAGE / "locale" / "ko" / "LC_MESSAGES" / "bansong.po"
CLICK = CATALOGUE.with_name("click.po")
"""What click itself says: kept by hand, since its messages are not ours to collect."""

KEYWORDS = {"gettext": slice(1), "gettext_of": slice(1, 2), "gettext_noop": slice(1), "ngettext": slice(2)}
LISTS = ("gettext_noops", "ReplyFault")
KINDS = {"Phrase": slice(2), "Problem": slice(1, 3)}
"""What takes messages, and which of its arguments are the forms of one."""

HELP = {"help", "off_help", "short_help", "epilog"}
COMMANDS = {"command", "group"}

NOT_FOR_PEOPLE = {
    "client/errors.py": "a table of the documentation, which no command shows",
    "testing": "a fake service for tests of developers",
    "server/app.py": "tasks in the log; what ends a start is said by the command",
    "server/erasure.py": "what a job says of an erased row, and a request in the file",
    "server/learning.py": "the log, and what a model's journal says",
    "server/settings.py": "the log",
    "server/payloads.py": "documents of the interface, which developers read",
    "server/statuses.py": "the log",
    "server/routes.py": "documents of the interface, which developers read",
    "server/metrics.py": "what a monitor shows; its names are in docs/runbook.md",
}
"""Where English texts stay as they are, and why."""

# collecting


@cache
def nodes() -> dict[str, list[ast.AST]]:
    """All nodes of the syntax tree of each module, by its path in the package; read once."""
    gc.disable()  # half a million nodes would be looked at again and again
    try:
        paths = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
        return {name: [*ast.walk(ast.parse(path.read_bytes()))] for name, path in paths.items()}
    finally:
        gc.freeze()
        gc.enable()


@cache
def messages() -> Catalog:
    """All messages of the code, with the files that they stand in; collected once, nobody changes what is returned."""
    found = Catalog(project="bansong", charset="utf-8")
    for path, module in nodes().items():
        where = [(f"{PACKAGE.name}/{path}", None)]
        for texts in _texts_of_calls(module):
            found.add(texts[0] if len(texts) == 1 else texts, locations=where)
        if path.startswith("cli/") or b" = option(" in (PACKAGE / path).read_bytes():
            for text in _help_texts(module):
                found.add(text, locations=where)
    return found


def _texts_of_calls(module: list[ast.AST]) -> Iterator[tuple[str, ...]]:
    """The forms of each message: of what translates it, and of what holds it before its fields."""
    for node in module:
        called = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if called in LISTS:
            yield from ((text,) for text in map(_constant, node.args) if text)
        elif called in KINDS and (texts := tuple(filter(None, map(_constant, node.args[KINDS[called]])))):
            yield texts
        elif called in KEYWORDS:
            texts = tuple(map(_constant, node.args[KEYWORDS[called]]))
            if texts and all(texts):  # what is translated here and written elsewhere is marked there
                yield texts


def _help_texts(module: list[ast.AST]) -> Iterator[str]:
    """The help of options and commands, and the docstrings of commands, as click holds them."""
    for node in module:
        if isinstance(node, ast.Call):
            yield from (text for word in node.keywords if word.arg in HELP and (text := _constant(word.value)))
        if isinstance(node, ast.FunctionDef) and any(_is_command(one) for one in node.decorator_list):
            yield inspect.cleandoc(ast.get_docstring(node, clean=False) or "").split("\f")[0].strip()


def _is_command(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr in COMMANDS


def _constant(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


# the catalogue


def read_catalogue(path: Path = CATALOGUE) -> Catalog:
    """The Korean as it is stored."""
    with path.open("rb") as file:
        return pofile.read_po(file, locale="ko")


def updated() -> Catalog:
    """The catalogue with the messages of the code as they are now."""
    template = messages()
    catalogue = read_catalogue() if CATALOGUE.exists() else Catalog(locale="ko")
    translations = {one.id: one.string for one in catalogue if one.id}
    renewed = Catalog(locale="ko", project="bansong", charset="utf-8")
    for one in template:
        if one.id:
            renewed.add(one.id, translations.get(one.id), locations=one.locations)
    return renewed


def rendered(catalogue: Catalog) -> bytes:
    """The ``.po`` file, without dates and places in the code: a change of code alone does not change it."""
    out = io.BytesIO()
    pofile.write_po(out, catalogue, width=120, sort_output=True, omit_header=True, no_location=True)
    head = (
        'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=utf-8\\n"\n"Plural-Forms: nplurals=1; plural=0;\\n"\n'
    )
    return head.encode() + b"\n" + out.getvalue()


def compiled(path: Path) -> bytes:
    """The ``.mo`` file of a ``.po`` file."""
    out, catalogue = io.BytesIO(), read_catalogue(path)
    # the file has no dates; without these Babel writes the minute of the compilation
    catalogue.creation_date = catalogue.revision_date = datetime(2026, 1, 1, tzinfo=UTC)
    write_mo(out, catalogue)
    return out.getvalue()


def write() -> None:
    """Bring the catalogues up to date."""
    CATALOGUE.parent.mkdir(parents=True, exist_ok=True)
    CATALOGUE.write_bytes(rendered(updated()))
    for path in (CATALOGUE, CLICK):
        path.with_suffix(".mo").write_bytes(compiled(path))


# checking


def faults() -> list[str]:
    """What is wrong with the translations, one line each."""
    stale = [] if texts(read_catalogue()) == texts(updated()) else [_stale(CATALOGUE)]
    stale += [_stale(path.with_suffix(".mo")) for path in (CATALOGUE, CLICK) if not is_compiled(path)]
    due = [one for one in updated() if one.id]
    return [*stale, *(fault for one in due for fault in message_faults(one)), *unmarked()]


def texts(catalogue: Catalog) -> dict[str | tuple[str, ...], str | tuple[str, ...]]:
    """The messages and their Korean. Releases of Babel differ in layout and metadata, so bytes are not compared."""

    def value(text: str | Sequence[str]) -> str | tuple[str, ...]:
        return text if isinstance(text, str) else tuple(text)

    return {value(one.id): value(one.string or "") for one in catalogue if one.id}


def is_compiled(path: Path) -> bool:
    """Whether the ``.mo`` file holds the messages of the ``.po`` file."""
    if not path.with_suffix(".mo").exists():
        return False
    with path.with_suffix(".mo").open("rb") as file:
        return texts(read_mo(file)) == texts(read_catalogue(path))


def _stale(path: Path) -> str:
    return f"{path.relative_to(ROOT)} is not what the code gives; run: python docs/translations.py --write"


def message_faults(message: Message) -> list[str]:
    """What is wrong with one message's Korean."""
    originals = [message.id] if isinstance(message.id, str) else list(message.id)
    korean = [message.string] if isinstance(message.string, str) else list(message.string)
    if not all(korean):
        return [f"no Korean yet: {originals[0]!r}"]
    wanted, used = {fields(one) for one in originals}, fields(korean[0])
    found = [] if used in wanted else [f"other fields in Korean than in {originals[0]!r}"]
    if _PARTICLE.search(korean[0]):
        found.append(f"a particle in two forms in the Korean of {originals[0]!r}; put a noun behind the field")
    if re.fullmatch(r"(.{12,}?)\1+", korean[0], flags=re.S):
        found.append(f"the Korean of {originals[0]!r} stands there more than once")
    if korean[0].endswith(".") and not originals[-1].endswith((".", "?", "…")):
        found.append(f"a full stop in the Korean of {originals[0]!r}, which may stand in the middle of another message")
    return found


_PARTICLE = re.compile(r"\((?:를|는|가|으|과|와|이)\)")
"""을(를) and the like: which of the two is right depends on the name that stands before it."""


def fields(text: str) -> frozenset[str]:
    """The fields of a message; one that is no format has none."""
    try:
        return frozenset(name for _, name, _, _ in Formatter().parse(text) if name)
    except ValueError:
        return frozenset()


_WORDS = re.compile(r"[A-Za-z']{2,}[,;:]? (?:[a-z']{2,}|\{)|\} [a-z]{3,}|^an? [a-z]")
"""Two words one after the other, or a word beside a field: English for people, not a name."""
_TECHNICAL = re.compile(
    r"(?:^|\s)(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|WITH|PRAGMA|AND|WHERE|FROM|ON|CASE|IN|AS) |\(\?|\\[bdsw]"
    r"|^(?:SAVEPOINT|RELEASE|ROLLBACK)\b|^n\.number|^'none'|-(?:src|uri|action) '"
    r"|^(?:from |import _)bansong|^pip install |``|^'[a-z]+'(?:, '[a-z]+')*$|^a Journal settles|^'Apple SD Gothic Neo'"
    r"|^[(]os error |^HTTP \{|^# TYPE |^unclosed "
    r"|%[sdgr]\b|^\w+(?:, \w+){3,}$|^\s*This error occurred in$"  # columns of a table; what polars adds to a message
    r"|^--[a-z]+ \S+$"  # a flag and its value
    r"|^<|^--\{|^--[a-z]+: \{\}|^text/csv; |^multipart/form-data; |^yyyy-mm-dd |configured region$"  # markup, protocols
    r"|^bizverify status store$"  # the salt of a hash
    r"|^(?:before|behind) old$|^new \{\}$|^\{\} (?:old|style|points)$|^grade \{\} up to$|^actions \{\}$"  # columns
    r"|^head office$|^table \{\}$|^profile \{\}$|\(cut: \{\} characters\)$|^bansong: \{\}$"  # names in files
    r"|^, \{\} old$|^\{\} days$"  # of reasons: both languages stand beside each other
)
_SILENT = {
    *KEYWORDS,
    *KINDS,
    *("debug", "info", "exception", "_doc", "compile", "removeprefix"),
    *("AssertionError", "AttributeError", "NotImplementedError", "UnicodeDecodeError"),
}


def unmarked() -> list[str]:
    """English texts of the code that nothing translates; one that is marked somewhere may stand elsewhere as a key."""
    marked = {text for one in messages() if one.id for text in ([one.id] if isinstance(one.id, str) else one.id)}
    found = []
    for name, module in nodes().items():
        if not any(name == one or name.startswith(f"{one}/") for one in NOT_FOR_PEOPLE):
            found += [
                f"{name}:{line}: nothing translates {text[:80]!r}"
                for line, text in _unmarked_texts(module)
                if text not in marked
            ]
    return found


def _unmarked_texts(module: list[ast.AST]) -> Iterator[tuple[int, str]]:
    passed = {id(inner) for node in module for one in _passed_by(node) for inner in ast.walk(one)}
    for node in module:
        if id(node) in passed or not isinstance(node, (ast.Constant, ast.JoinedStr)):
            continue
        text = _whole_text(node)
        if _WORDS.search(text) and not _TECHNICAL.search(text):
            yield node.lineno, text
        if isinstance(node, ast.JoinedStr):
            passed.update(id(one) for one in ast.walk(node))


def _passed_by(node: ast.AST) -> list[ast.AST]:
    """The parts of a node whose texts are translated elsewhere, or are not for people."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return [node.value]  # a docstring
    if isinstance(node, ast.Dict) and {"en", "ko"} <= {_constant(key) for key in node.keys if key is not None}:
        return list(node.values)  # what is written into files, in the language of the run, and read back in both
    if isinstance(node, ast.ClassDef) and any(getattr(base, "id", "") == "Enum" for base in node.bases):
        return [one.value for one in node.body if isinstance(one, ast.Assign)]
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in _SILENT:
            return list(node.args)
        return [word.value for word in node.keywords if word.arg in HELP and _constant(word.value)]
    return []


def _whole_text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(one.value if isinstance(one, ast.Constant) else "{}" for one in node.values)


def main() -> None:
    if "--write" in sys.argv:
        write()
    found = faults()
    print("\n".join(found) or "every message is said in Korean")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
