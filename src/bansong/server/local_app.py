"""The web page of `bansong app`: who may ask, what is answered, and its HTML."""

from __future__ import annotations

import secrets
import time
import webbrowser
from asyncio import get_running_loop
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files
from string import Template
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qsl

import uvicorn
from anyio import CancelScope
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bansong.base.display import Shown
from bansong.base.errors import StoppedError
from bansong.base.messages import LANGS, count_rows, end_sentence, gettext, gettext_noop
from bansong.base.options import StatusOptions
from bansong.base.schema import ACTIONS, RECORD_COLUMNS, Alert, seoul_day, word_of
from bansong.reference.reviews import COLUMNS
from bansong.run.page_figures import Markup, join, tag
from bansong.server.local_desk import FoundTable, LocalDesk, Work, open_desk
from bansong.server.settings import listen, url_of
from bansong.tables.detect import default_output, output_format
from bansong.tables.excel.create import MEANINGS

_SWEEP_S: Final = 10.0
_STOP_S: Final = 10.0
_STRICT: Final = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_POLICY: Final = f"{_STRICT}; script-src 'self'; style-src 'self'; connect-src 'self'"
_REPORT_POLICY: Final = f"sandbox; {_STRICT}; style-src 'unsafe-inline'"
_HEADERS: Final = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
_ASSETS: Final = {"page.css": "bansong.run", "local_app.css": "bansong.server", "local_app.js": "bansong.server"}
_LANGUAGES: Final = {"en": "English", "ko": "한국어"}
_SHOWN_LETTERS: Final = 40
_ROLES: Final = {role: COLUMNS[role] for role in RECORD_COLUMNS} | {
    "confirmed": gettext_noop("day of the last address check"),
}
_DOWNLOADS: Final = {
    "result": gettext_noop("Your list with the answers"),
    "letters": gettext_noop("List for the mail house"),
    "review": gettext_noop("Addresses to decide on"),
    "report": gettext_noop("Report (opens in a new tab)"),
}


class _Guard:
    """Answers only a browser that has the token, asks for the one host, and comes from our own page."""

    def __init__(self, app: ASGIApp, url: str, token: str) -> None:
        self._app, self._origin, self._token = app, url, token
        self._cookie = f"bansong-{url.rpartition(':')[2]}"  # the ports of a host share their cookies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, host = Request(scope), self._origin.removeprefix("http://")
        by_token = scope["path"] == "/" and self._is_token(request.query_params.get("token", ""))
        is_known = by_token or self._is_token(request.cookies.get(self._cookie, ""))
        # another host: DNS rebinding; another origin: a page of another site, or of another port
        is_ours = request.headers.get("host") == host and request.headers.get("origin", self._origin) == self._origin
        by_token = by_token and is_ours

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Content-Security-Policy", _POLICY)
                if by_token:
                    headers["Set-Cookie"] = f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            await send(message)

        if is_known and is_ours:
            await self._app(scope, receive, send_guarded)
        else:
            refusal = gettext("403: open the address that bansong showed when it was started last")
            await PlainTextResponse(refusal, 403)(scope, receive, send_guarded)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())


def create_local_app(desk: LocalDesk, url: str, token: str) -> ASGIApp:
    """Return the ASGI app of a desk, served at ``url`` to the browser that has the ``token``."""
    pages = _Handlers(desk)
    routes = [
        Route("/", pages.open),
        Route("/view", pages.view),
        Route("/files/{use}", pages.download),
        Route("/upload", pages.upload, methods=["POST"]),
        Route("/{action}", pages.act, methods=["POST"]),
        Route("/{name}", pages.asset),
    ]
    return _Guard(Starlette(routes=routes), url, token)


def run_local_app(
    reference: Mapping[str, Any], status: StatusOptions, port: int, on_start: Callable[[str], None], *, browser: bool
) -> None:
    """Serve the page on this machine until SIGINT or SIGTERM; call ``on_start`` with its address, once."""
    with listen("127.0.0.1", port) as listener, open_desk(reference, status) as desk:
        url, token = url_of(listener), secrets.token_urlsafe(32)
        address = f"{url}/?token={token}"
        on_start(address)
        Thread(target=_sweep, args=(desk,), daemon=True).start()
        if browser:  # some are started in this terminal, and return when they end
            Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        app = create_local_app(desk, url, token)
        config = uvicorn.Config(
            app, ws="none", http="h11", lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=2
        )
        with suppress(KeyboardInterrupt):  # uvicorn raises the signal again after shutdown
            uvicorn.Server(config).run(sockets=[listener])
        desk.stop(_STOP_S)


def _sweep(desk: LocalDesk) -> None:
    while True:
        time.sleep(_SWEEP_S)
        desk.sweep(time.time())


class _Handlers:
    def __init__(self, desk: LocalDesk) -> None:
        self._desk = desk
        self._actions: Mapping[str, tuple[str, Callable[[Mapping[str, str]], Callable[[Work], None]]]] = {
            "look": (gettext_noop("reading"), lambda form: partial(desk.look, sheet=form.get("sheet"))),
            "run": (gettext_noop("reading"), self._run),
            "outcomes": (gettext_noop("recording"), self._record_outcomes),
            "review": (gettext_noop("recording"), lambda _: partial(desk.take_review, review=desk.given["review"])),
        }

    async def open(self, request: Request) -> Response:
        desk = self._desk
        desk.pages.clear()  # a browser may drop one without a word; those that are open ask again
        desk.lang = next((one for one in LANGS if one == request.query_params.get("lang")), desk.lang)
        other = next(one for one in LANGS if one != desk.lang)
        with desk.speaking():
            texts = {
                "title": gettext("Check a list before you post it"),
                "privacy": gettext("Your files stay on this computer. They are deleted when you close this page."),
                "gone": gettext("bansong has ended. Start it again, and open the new address."),
                "cancel": gettext("Cancel"),
                "done": gettext("done"),
            }
        texts |= {"lang": desk.lang, "other": other, "other_name": _LANGUAGES[other]}
        template = files("bansong.server").joinpath("local_app.html").read_text(encoding="utf-8")
        return HTMLResponse(Template(template).substitute(texts))

    async def asset(self, request: Request) -> Response:
        if (name := request.path_params["name"]) not in _ASSETS:
            return Response(status_code=404)
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        return Response(files(_ASSETS[name]).joinpath(name).read_bytes(), media_type=kind)

    async def view(self, request: Request) -> Response:
        desk, asked = self._desk, request.query_params
        desk.pages.add(asked.get("page", ""))
        desk.seen = time.time()
        work, version = desk.work, str(desk.version)
        answer: dict[str, Any] = {"version": version}
        with desk.speaking():
            if work is not None:
                text = " · ".join(filter(None, (gettext(work.doing), work.figures)))
                answer["busy"] = {"text": text, "done": work.done, "total": work.total}
            elif asked.get("version") != version:
                answer["html"] = render(desk)
        return JSONResponse(answer)

    async def download(self, request: Request) -> Response:
        use = request.path_params["use"]
        path = self._desk.files.get(use)
        if path is None or not path.is_file():
            return Response(status_code=404)
        if use == "report":
            return FileResponse(path, headers={"Content-Security-Policy": _REPORT_POLICY})
        return FileResponse(path, filename=path.name)

    async def upload(self, request: Request) -> Response:
        desk, query, loop = self._desk, request.query_params, get_running_loop()
        size = int(request.headers.get("content-length", "0"))
        if not {"use", "name"} <= query.keys():
            return self._refuse()
        if (work := desk.begin(gettext_noop("storing"))) is None:
            return Response(status_code=409)
        try:
            with CancelScope() as scope:

                def end_wait() -> None:  # for a stalled upload, from any thread
                    loop.call_soon_threadsafe(scope.cancel)

                work.token.set_handler(end_wait)
                with desk.receive(work, query["use"], query["name"], size) as write:
                    async for piece in request.stream():
                        write(piece)
        except (OSError, ClientDisconnect, StoppedError):
            return Response(status_code=507)
        if scope.cancelled_caught:
            return Response(status_code=507)
        if query["use"] == "list":
            self._start("look", desk.look)
        return Response(status_code=204)

    async def act(self, request: Request) -> Response:
        desk, action = self._desk, request.path_params["action"]
        body = await request.body()
        try:
            form = dict(parse_qsl(body.decode(), keep_blank_values=True))
            do = self._actions[action][1](form) if action in self._actions else None
        except (KeyError, ValueError):
            return self._refuse()
        if action == "closed":
            desk.pages.discard(request.query_params.get("page", ""))
        elif action == "cancel" and desk.work is not None:
            desk.work.cancel()
        elif action == "clear" and desk.work is None:
            desk.clear()
        elif do is None or not self._start(action, do):
            return Response(status_code=409)
        return Response(status_code=204)

    def _refuse(self) -> Response:
        with self._desk.speaking():
            return PlainTextResponse(
                gettext("400: the form is incomplete or damaged; reload the page, then send it again"), 400
            )

    def _start(self, action: str, do: Callable[[Work], None]) -> bool:
        work = self._desk.begin(self._actions[action][0])
        if work is not None:
            self._desk.start(work, do)
        return work is not None

    def _run(self, form: Mapping[str, str]) -> Callable[[Work], None]:
        roles = {int(name.removeprefix("role-")): role for name, role in form.items() if name.startswith("role-")}
        cost = float(form["letter_cost"]) if form.get("letter_cost") else None
        return partial(self._desk.run, wanted=frozenset(form), roles=roles, cost=cost)

    def _record_outcomes(self, form: Mapping[str, str]) -> Callable[[Work], None]:
        requested = {"yes": True, "no": False}.get(form.get("requested", ""))
        sent = {"complete": True, "sent": "send"} if "complete" in form else {}
        options: dict[str, Any] = {"mailed": form.get("mailed_on") or None, "returns_requested": requested, **sent}
        return partial(self._desk.record_outcomes, returned=self._desk.given["outcomes"], **options)


def render(desk: LocalDesk) -> Markup:
    """Return the sections of the page for what is on the desk."""
    error = [] if desk.error is None else [_alert(desk.tidy(desk.error), role="alert", id="focus", tabindex="-1")]
    return join(*error, _list_section(desk), *_result_sections(desk), _outcome_section(desk), _review_section(desk))


def _alert(text: str, **attributes: str) -> Markup:
    return tag("p", end_sentence(text), class_="alert", **attributes)


def _section(desk: LocalDesk, key: str, title: str, *children: str, folds: bool = False) -> Markup:
    is_latest = desk.latest == key
    head = tag("h2", title, **({"id": "focus", "tabindex": "-1"} if is_latest and desk.error is None else {}))
    if not folds:
        return tag("section", head, *children)
    return tag("details", tag("summary", head), *children, class_="section", **({"open": ""} if is_latest else {}))


def _form(action: str, button: str, *children: str, class_: str = "") -> Markup:
    return tag("form", *children, tag("button", button, class_=class_), action=f"/{action}")


def _input(kind: str, name: str, text: str = "", **attributes: str) -> Markup:
    element = Markup(tag("input", type=kind, name=name, **attributes).removesuffix("</input>"))
    return tag("label", element, text, class_="check") if text else element


def _check(name: str, text: str, *, on: bool = True) -> Markup:
    return _input("checkbox", name, text, value="on", **({"checked": ""} if on else {}))


def _file(use: str, text: str, *, hint: str = "", needed: bool = True) -> Markup:
    chooser = _input("file", "", data_use=use, **({"required": ""} if needed else {}))
    return tag("label", tag("strong", text), hint, chooser, class_="drop", id=f"drop-{use}")


def _choice(name: str, options: Mapping[str, str], chosen: str, **attributes: str) -> Markup:
    marks = {chosen: {"selected": ""}}
    items = (tag("option", text, value=value, **marks.get(value, {})) for value, text in options.items())
    return tag("select", *items, name=name, **attributes)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    head = tag("tr", *(tag("th", title, scope="col") for title in titles))
    lines = ((tag("td", cell, data_label=title) for title, cell in zip(titles, row, strict=True)) for row in rows)
    return tag("table", tag("thead", head), tag("tbody", *(tag("tr", *line) for line in lines)), class_="list")


def _details(title: str, lines: Iterable[str]) -> list[Markup]:
    items = [tag("li", end_sentence(line)) for line in lines]
    return [tag("details", tag("summary", f"{title} ({len(items)})"), tag("ul", *items))] if items else []


def _warnings(desk: LocalDesk, report: Shown) -> list[Markup]:
    texts = [(isinstance(one, Alert), desk.tidy(one)) for one in getattr(report, "warnings", ())]
    notes = _details(gettext("Notes"), (text for is_alert, text in texts if not is_alert))
    return [*(_alert(text) for is_alert, text in texts if is_alert), *notes]


def _list_section(desk: LocalDesk) -> Markup:
    title, found = gettext("1. Your list"), desk.found
    if "list" not in desk.given:
        hint = gettext("Excel, CSV, JSON or Parquet, as you have it")
        chooser = _file("list", gettext("Drop your customer list here, or choose it"), hint=hint, needed=False)
        return _section(desk, "list", title, chooser)
    name = tag("strong", desk.given["list"].name)
    rows = [", ", count_rows(found.plan.rows)] if found and found.plan else []
    another = _form("clear", gettext("Take another list"), class_="quiet")
    head = tag("div", tag("p", name, *rows), another, class_="row")
    if found is None:
        return _section(desk, "list", title, head)
    sheets = []
    if len(found.sheets) > 1:
        select = _choice("sheet", {one: one for one in found.sheets}, found.sheet or "")
        sheets.append(_form("look", gettext("Read this sheet"), tag("label", gettext("Sheet"), select), class_="quiet"))
    warnings = _warnings(desk, found.plan) if found.plan else []
    run = join(*sheets, _form("run", gettext("Check the list"), _columns(found), _wishes(desk, found)))
    if desk.report is not None:
        again = tag("details", tag("summary", gettext("Choose otherwise, and check again")), run)
        return _section(desk, "list", title, head, again)
    return _section(desk, "list", title, head, *warnings, run)


def _columns(found: FoundTable) -> Markup:
    roles = {"": gettext("(not used)")} | {role: gettext(text) for role, text in _ROLES.items()}
    rows = []
    for place, (header, cells) in enumerate(zip(found.headers, found.cells, strict=True)):
        label = gettext("use of {header}", header=header or f"#{place + 1}")
        select = _choice(f"role-{place}", roles, found.role_of(place), aria_label=label)
        rows.append((header or f"#{place + 1}", " · ".join(cell[:_SHOWN_LETTERS] for cell in cells), select))
    titles = (gettext("Column"), gettext("First cells"), gettext("Use"))
    return join(tag("h3", gettext("Are these the right columns?")), _table(titles, rows))


def _wishes(desk: LocalDesk, found: FoundTable) -> Markup:
    wishes = [_check("letters", gettext("List for the mail house: one row a letter, without repeats"))]
    if desk.reference.get("gazetteer"):
        wishes.append(_check("review", gettext("Workbook of the addresses that a person must decide on")))
    wishes.append(_check("report", gettext("Report to read, print and pass on")))
    if output_format(default_output(desk.given["list"], found.format)).can.korean_headers:
        wishes.append(_check("headers", gettext("Korean headers and words in the added columns"), on=desk.lang == "ko"))
    if desk.status.is_asking:
        wishes.append(_check("status", gettext("Ask the tax authority who has closed (sends business numbers only)")))
    cost = _input("number", "letter_cost", min="0", step="any", inputmode="decimal")
    price = tag("label", gettext("Postage of a letter in won, if you like"), cost)
    return tag("fieldset", tag("legend", gettext("What do you need?")), *wishes, price)


def _result_sections(desk: LocalDesk) -> Iterator[Markup]:
    if desk.report is None:
        return
    report = desk.report
    actions = report.account.by_action if report.account else {}
    letters = report.beside.letters if report.beside else None
    cards = [(gettext("rows"), f"{report.rows:,}")]
    if letters is not None:
        cards.append((gettext("letters"), f"{letters.letters:,}"))
        if letters.cost is not None and letters.saved is not None:
            cards.append((gettext("postage"), gettext("₩{amount:,.0f}", amount=letters.letters * letters.cost)))
            cards.append((gettext("saved"), gettext("₩{amount:,.0f}", amount=letters.saved)))
    shown = tag("ul", *(tag("li", tag("strong", value), what) for what, value in cards), class_="cards")
    words = {one: word_of(one, desk.lang).replace("_", " ") for one in ACTIONS}
    rows = [(word, f"{actions.get(one, 0):,}", gettext(MEANINGS[one])) for one, word in words.items()]
    if others := report.rows - sum(actions.get(one, 0) for one in ACTIONS):
        rows.append(
            (gettext("without an answer"), f"{others:,}", gettext("correct what the note says, then check again"))
        )
    table, tabs = _table((gettext("action"), gettext("rows"), gettext("what to do")), rows), {"report": "_blank"}
    links = (
        tag("a", gettext(_DOWNLOADS[use]), tag("span", path.name), href=f"/files/{use}", target=tabs.get(use, ""))
        for use, path in desk.files.items()
    )
    more = _details(gettext("In full"), (f"{what}: {desk.tidy(text)}" for what, text in report.lines()))
    files = tag("div", *links, class_="files")
    yield _section(desk, "result", gettext("2. Result"), shown, files, *_warnings(desk, report), table, *more)


def _recorded_lines(desk: LocalDesk, key: str) -> list[Markup]:
    if (report := desk.recorded.get(key)) is None:
        return []
    rows = (tag("tr", tag("th", what, scope="row"), tag("td", desk.tidy(text))) for what, text in report.lines())
    return [tag("p", gettext("Recorded."), class_="good"), tag("table", tag("tbody", *rows)), *_warnings(desk, report)]


def _outcome_section(desk: LocalDesk) -> Markup:
    said = gettext("Give the list of the letters that came back: the next checks take it into account.")
    fields = [_file("outcomes", gettext("List of returned letters"))]
    above = gettext("leave it empty for the result above") if desk.report else ""
    posted = gettext("Result of an earlier check, which was posted")
    fields.append(_file("mailed", posted, hint=above, needed=not above))
    day = _input("date", "mailed_on", required="", max=seoul_day().isoformat())
    fields.append(tag("label", gettext("Day of posting"), day))
    answers = {"yes": gettext("Yes (registered, or marked for return)"), "no": gettext("No")}
    radios = (_input("radio", "requested", text, value=value, required="") for value, text in answers.items())
    fields.append(tag("fieldset", tag("legend", gettext("Were undeliverable letters to come back?")), *radios))
    fields.append(_check("complete", gettext("No more will come back: all others arrived"), on=False))
    form = _form("outcomes", gettext("Record"), *fields)
    lines = _recorded_lines(desk, "outcomes")
    return _section(desk, "outcomes", gettext("Returned letters"), tag("p", said), *lines, form, folds=True)


def _review_section(desk: LocalDesk) -> Markup:
    said = gettext("Give the workbook in which you chose addresses, then check the list again.")
    form = _form("review", gettext("Take the choices"), _file("review", gettext("Workbook with your choices")))
    lines = _recorded_lines(desk, "review")
    return _section(desk, "review", gettext("Chosen addresses"), tag("p", said), *lines, form, folds=True)
