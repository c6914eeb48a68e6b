"""The page of `bansong app` as a browser asks for it: who is answered, what is made of a list, what is deleted."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import anyio
import httpx
import polars as pl
import pytest
from anyio.from_thread import start_blocking_portal

import bansong as bs
from bansong.base.messages import use_language
from bansong.base.options import StatusOptions
from bansong.history.labels import LabelStore
from bansong.server import local_app, local_desk
from bansong.server.local_desk import LocalDesk, open_desk
from bansong.testing import FakeNts, serve
from conftest import SAMPLE
from serving import InProcess, wait_until

REFERENCE = {"registry": SAMPLE / "registry.parquet", "gazetteer": SAMPLE / "gazetteer.parquet"}
URL, TOKEN = "http://127.0.0.1:4711", "s3cret"
LIST = """고객코드,사업자등록번호,상호,기본주소,우편번호
1,576-81-33138,해오름온누리식품,대전광역시 유성구 대학로 313,34165
2,1.248E+09,가게,서울 종로구 종로 5,03146
"""


@dataclass
class Browser:
    """A browser that has the page open."""

    desk: LocalDesk
    http: httpx.Client

    def post(self, path: str, body: str | bytes = b"") -> int:
        return self.http.post(path, content=body).status_code

    def upload(self, use: str, name: str, content: str | bytes) -> int:
        self.http.params = {"use": use, "name": name}
        try:
            return self.post("/upload", content)
        finally:
            self.http.params = {}

    def view(self) -> str:
        """The page's sections once nothing is under way."""
        found: dict[str, Any] = {}

        def is_idle() -> bool:
            found.update(busy=None)
            found.update(self.http.get("/view?page=one").json())
            return found["busy"] is None

        wait_until(is_idle)
        return str(found["html"])

    def roles(self) -> dict[str, str]:
        """What the page's form says of each column."""
        selects = re.findall(r'<select name="(role-\d+)".*?</select>', self.view())
        chosen = re.findall(r'<select name="role-\d+".*?<option value="(\w*)" selected="">', self.view())
        return dict(zip(selects, chosen, strict=True))

    def run(self, *wanted: str, **form: str) -> str:
        fields = {**self.roles(), **dict.fromkeys(wanted, "on"), **form}
        assert self.post("/run", str(httpx.QueryParams(fields))) == 204
        return self.view()


@contextmanager
def browsing(state: Path, **reference: Any) -> Iterator[Browser]:
    with open_desk(reference, StatusOptions()) as desk, start_blocking_portal() as portal:
        app = local_app.create_local_app(desk, URL, TOKEN)
        with httpx.Client(transport=InProcess(app, portal), base_url=URL) as http:
            assert http.get(f"/?token={TOKEN}").status_code == 200  # its cookie lets the others in
            yield Browser(desk, http)
            desk.stop(60)
    assert list((state / "app").iterdir()) == []


@pytest.fixture
def browser(state_directory: Path) -> Iterator[Browser]:
    with browsing(state_directory, **REFERENCE) as it:
        yield it


def files_of(desk: LocalDesk) -> set[str]:
    return {path.name for path in desk.folder.rglob("*") if path.is_file()}


def test_only_the_browser_with_the_token_is_answered_and_only_from_its_own_page(browser: Browser) -> None:
    cookie = browser.http.cookies.jar
    (ours,) = cookie
    assert (ours.value, ours.has_nonstandard_attr("HttpOnly")) == (TOKEN, True)
    assert browser.http.get(f"/?token={TOKEN}").headers["set-cookie"].count("SameSite=Strict") == 1
    for headers in ({"host": "evil.example:4711"}, {"host": "localhost:4711"}, {"origin": "http://127.0.0.1:80"}):
        refused = browser.http.post("/clear", headers=headers)
        assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
    assert browser.http.post("/clear", headers={"origin": URL}).status_code == 204
    browser.http.cookies.clear()
    for path in ("/", "/?token=wrong", f"/view?token={TOKEN}", "/local_app.js", "/files/result"):
        assert browser.http.get(path).status_code == 403


def test_the_page_runs_only_its_own_script_and_loads_nothing_from_elsewhere(browser: Browser) -> None:
    page = browser.http.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "access-control-allow-origin" not in page.headers
    assert not re.search(r"https?://|<style|style=|<script>|\son\w+=", page.text)
    for asset in re.findall(r'(?:href|src)="(/[\w.]+)"', page.text):
        assert browser.http.get(asset).status_code == 200
    assert {browser.http.get(path).status_code for path in ("/local_app.py", "/files/..%2f..%2fx")} == {404}
    assert browser.post("/nothing") == 409


def test_a_list_goes_up_and_comes_down_as_enrich_writes_it(browser: Browser, tmp_path: Path) -> None:
    rows = pl.read_csv(SAMPLE / "customers.csv", infer_schema=False).head(8)
    rows.write_csv(tmp_path / "list.csv")
    assert browser.upload("list", "C:\\받은 파일\\고객 명단.csv", (tmp_path / "list.csv").read_bytes()) == 204
    seen = browser.view()
    assert "고객 명단.csv" in seen
    assert "576-81-33138" in seen
    assert browser.roles() == {f"role-{at}": role for at, role in enumerate(ROLES)}
    with use_language("ko"):
        browser.desk.lang = "ko"
        assert "500" in browser.run("letters", "review", "report", "headers", letter_cost="500")
        report = bs.enrich(tmp_path / "list.csv", tmp_path / "out.csv", headers="ko", **REFERENCE)
    result = browser.http.get("/files/result")
    assert result.content == (tmp_path / "out.csv").read_bytes()
    assert "filename*=utf-8''%EA%B3%A0%EA%B0%9D%20" in result.headers["content-disposition"]
    assert browser.desk.report is not None
    assert browser.desk.report.account == report.account
    assert pl.read_excel(browser.http.get("/files/letters").content).height > 0
    assert pl.read_excel(browser.http.get("/files/review").content).width > 5
    page = browser.http.get("/files/report")
    assert page.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert "content-disposition" not in page.headers
    assert str(browser.desk.folder) not in browser.view()
    assert "`bansong" not in browser.view()
    if os.name == "posix":
        modes = {stat.S_IMODE(path.stat().st_mode) for path in (browser.desk.folder, *browser.desk.folder.rglob("*"))}
        assert modes == {0o700, 0o600}


ROLES = ("", "b_no", "name", "", "address", "zipcode", "", "")


def test_columns_that_are_chosen_count_and_so_do_those_that_are_not_used(browser: Browser) -> None:
    browser.upload("list", "list.csv", LIST)
    found = browser.roles()
    assert [*found.values()] == ["", "b_no", "name", "address", "zipcode"]
    browser.run(**found | {"role-4": "", "role-2": "address", "role-3": "address"})
    assert browser.desk.report is not None
    chosen = browser.desk.report.columns
    assert {role: [part.column for part in choice.parts] for role, choice in chosen.items()} == {
        "b_no": [1],
        "address": [2, 3],
    }
    browser.upload("list", "list.csv", "<script>,b\n<img>,2\n")
    assert 'role="alert"' in browser.view()
    assert not re.search("<script|<img", browser.view())
    assert browser.desk.error is not None
    assert browser.desk.error.code == "columns.number_column_not_found"
    assert [*browser.roles().values()] == ["", ""]


def test_a_role_without_a_column_is_an_empty_list(tmp_path: Path) -> None:
    source = tmp_path / "list.csv"
    source.write_text(LIST, encoding="utf-8")
    assert "zipcode" in bs.plan(source).columns
    assert "zipcode" not in bs.plan(source, columns={"우편번호": []}).columns


def test_a_sheet_is_chosen(browser: Browser) -> None:
    browser.upload("list", "두 시트.xlsx", two_sheets())
    assert browser.view().count("<option") > 0
    assert browser.desk.found is not None
    assert (browser.desk.found.sheet, browser.desk.found.sheets) == ("서울", ("서울", "부산"))
    assert browser.post("/look", str(httpx.QueryParams(sheet="부산"))) == 204
    browser.run()
    assert browser.desk.report is not None
    assert browser.desk.report.rows == 2


def two_sheets() -> bytes:
    from io import BytesIO

    import openpyxl

    book = openpyxl.Workbook()
    for sheet, count in ((book.active, 1), (book.create_sheet("부산"), 2)):
        assert sheet is not None
        sheet.append(("사업자등록번호", "상호", "주소"))
        for _ in range(count):
            sheet.append(("576-81-33138", "가게", "대전광역시 유성구 대학로 313"))
    assert book.active is not None
    book.active.title = "서울"
    book.save(content := BytesIO())
    return content.getvalue()


def test_the_tax_authority_is_asked_only_if_there_is_a_key_and_the_box_is_ticked(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser.upload("list", "list.csv", LIST)
    assert 'name="status"' not in browser.view()
    with serve(FakeNts("key/0123456789==", {"5768133138": "closed"})) as url:
        monkeypatch.setenv("BANSONG_NTS_URL", url)
        monkeypatch.setenv("BANSONG_NTS_KEY", "key/0123456789==")
        browser.upload("list", "list.csv", LIST)
        assert 'name="status"' in browser.view()
        for wanted in ((), ("status",)):
            browser.run(*wanted)
            assert browser.desk.report is not None
            assert (browser.desk.report.asked is not None) is bool(wanted)


def test_returned_letters_are_recorded_for_the_result_and_for_a_file(browser: Browser) -> None:
    browser.upload("list", "list.csv", LIST)
    browser.run()
    enriched = browser.http.get("/files/result").content
    outcomes = "사업자등록번호,반송사유\n576-81-33138,수취인불명\n"
    assert browser.upload("outcomes", "반송.csv", outcomes) == 204
    form = {"mailed_on": "2026-10-05"}
    assert browser.post("/outcomes", str(httpx.QueryParams(form))) == 204
    browser.view()
    assert browser.desk.error is not None
    assert browser.desk.error.code.startswith("mailings.")  # whether they were to come back must be said
    assert browser.post("/outcomes", str(httpx.QueryParams(form | {"requested": "yes"}))) == 204
    browser.view()
    assert browser.desk.recorded["outcomes"].bounced == 1  # type: ignore[attr-defined]
    assert LabelStore().history() is not None
    assert browser.post("/outcomes", str(httpx.QueryParams(form))) == 204
    assert "outcomes" not in (browser.view() and browser.desk.recorded)  # the success before is not that of this one
    assert browser.post("/clear") == 204
    assert (browser.upload("outcomes", "반송.csv", outcomes), browser.upload("mailed", "발송.csv", enriched)) == (
        204,
        204,
    )
    assert browser.post("/outcomes", str(httpx.QueryParams(form | {"requested": "no"}))) == 204
    browser.view()
    assert browser.desk.recorded["outcomes"].file.endswith("발송.csv")  # type: ignore[attr-defined]


def test_a_run_is_cancelled_and_another_is_refused_meanwhile(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = Event()

    def enrich_later(*arguments: Any, **options: Any) -> Any:
        goes_on.wait()
        return bs.enrich(*arguments, **options)

    browser.upload("list", "list.csv", LIST)
    roles = str(httpx.QueryParams(browser.roles()))
    with monkeypatch.context() as patch:
        patch.setattr(local_desk, "enrich", enrich_later)
        assert browser.post("/run", roles) == 204
        assert browser.http.get("/view?page=two").json()["busy"]["total"] == 0
        refused = {browser.post("/run", roles), browser.post("/clear"), browser.upload("list", "x.csv", LIST)}
        assert refused == {409}
        assert browser.post("/cancel") == 204
        goes_on.set()
        browser.view()
    assert (browser.desk.report, browser.desk.error, files_of(browser.desk)) == (None, None, {"list.csv"})
    browser.run()
    assert browser.desk.report is not None


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # as uvicorn
@pytest.mark.parametrize("from_thread", [False, True])
async def test_cancelling_ends_a_stalled_upload_at_once(state_directory: Path, from_thread: bool) -> None:
    async def stalled() -> AsyncIterator[bytes]:
        yield b"x"
        await anyio.sleep_forever()

    with open_desk({}, StatusOptions()) as desk:
        transport = httpx.ASGITransport(local_app.create_local_app(desk, URL, TOKEN))
        async with httpx.AsyncClient(transport=transport, base_url=URL) as http, anyio.create_task_group() as group:
            assert (await http.get(f"/?token={TOKEN}")).status_code == 200
            group.start_soon(partial(http.post, "/upload?use=list&name=list.csv", content=stalled()))
            with anyio.fail_after(20):
                while desk.work is None or not desk.work.done:
                    await anyio.sleep(0.01)
                if from_thread:
                    await anyio.to_thread.run_sync(desk.work.cancel)
                else:
                    assert (await http.post("/cancel")).status_code == 204
                while desk.work is not None:
                    await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        assert (desk.given, desk.error, files_of(desk)) == ({}, None, set())


def test_malformed_forms_are_refused_with_a_sentence_and_the_page_goes_on(browser: Browser) -> None:
    browser.upload("list", "list.csv", LIST)
    forms = (
        "/run letter_cost=x",
        "/run role-x=name",
        "/run \xff",
        "/upload use=list",
        "/upload name=a",
        "/outcomes",
        "/review",
    )
    for path, _, form in (one.partition(" ") for one in forms):
        browser.view()
        target, body = (f"{path}?{form}", "") if path == "/upload" else (path, form)
        refused = browser.http.post(target, content=body.encode("latin-1"))
        assert (refused.status_code, refused.text[:5]) == (400, "400: "), path
    for form in ("letter_cost=nan", "letter_cost=-1", "role-0=x", "role-99=name", "role--1=name"):
        assert browser.post("/run", form) == 204
        assert 'role="alert"' in browser.view(), form
        assert browser.desk.error is not None
        assert browser.desk.error.code != "app.defect", form
    assert browser.run()


@pytest.mark.parametrize(
    ("closed", "seconds", "stays"),
    [("/closed?page=one", 110, True), ("/closed?page=two", 130, True), ("/closed?page=one", 130, False)],
)
def test_files_are_deleted_once_the_last_page_is_closed(
    browser: Browser, closed: str, seconds: int, stays: bool
) -> None:
    """A page that its browser dropped without a word does not count once another was opened."""
    browser.upload("list", "list.csv", LIST)
    browser.http.get("/view?page=dropped")
    assert browser.http.get("/").status_code == 200
    browser.view()
    now = time.time()
    assert browser.post(closed) == 204
    for second in range(0, seconds + 1, 10):
        browser.desk.sweep(now + second)
    assert bool(files_of(browser.desk)) is stays


def test_files_are_deleted_after_a_day_though_the_page_is_open(browser: Browser) -> None:
    browser.upload("list", "list.csv", LIST)
    browser.view()
    now = time.time()
    for hour in range(25):  # also while the machine sleeps, and the page cannot speak
        assert files_of(browser.desk)
        browser.desk.sweep(now + hour * 3600 + 60)
    assert not files_of(browser.desk)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_a_full_disk_is_said_and_leaves_nothing(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_nothing(path: Path) -> int:
        return os.open("/dev/full", os.O_WRONLY)

    monkeypatch.setattr(local_desk, "create_private", write_nothing)
    assert browser.upload("list", "list.csv", LIST) == 507
    assert browser.desk.error is not None
    assert browser.desk.error.code == "app.upload_failed"
    assert files_of(browser.desk) == set()


def test_what_a_killed_app_left_is_removed_and_what_another_uses_stays(state_directory: Path) -> None:
    with open_desk({}, StatusOptions()) as living:
        left = state_directory / "app" / "0123456789abcdef"
        left.mkdir()
        (left / "list.csv").write_text(LIST, encoding="utf-8")
        left.with_suffix(".lock").touch()
        (living.folder / "list.csv").write_text(LIST, encoding="utf-8")
        with open_desk({}, StatusOptions()):
            assert not left.exists()
            assert not left.with_suffix(".lock").exists()
            assert (living.folder / "list.csv").exists()


@pytest.mark.parametrize(
    ("given", "safe"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\a\\명단.xlsx", "명단.xlsx"),
        ("", "list"),
        ("..", "list"),
        ('a<b>:"|?*.csv', "a_b______.csv"),
        ("가" * 300 + ".xlsx", "가" * 53 + ".xlsx"),
        ("\u1100\u1161.csv", "가.csv"),
    ],
)
def test_names_of_files_are_safe(given: str, safe: str) -> None:
    assert local_desk.safe_name(given) == safe


def test_cells_of_any_type_are_shown(browser: Browser, tmp_path: Path) -> None:
    cells = {"binary": [b"\xff"], "list": [[1, 2]], "object": [{"a": 1}], "span": [timedelta(days=1)]}
    pl.DataFrame({"사업자번호": ["576-81-33138"], **cells}).write_parquet(tmp_path / "list.parquet")
    browser.upload("list", "list.parquet", (tmp_path / "list.parquet").read_bytes())
    assert "[1, 2]" in browser.view()
    assert browser.desk.error is None
