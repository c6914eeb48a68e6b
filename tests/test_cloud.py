"""Remote files: what s3:// and https:// URLs give and take, and what is said where they do not."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import openpyxl
import pytest
import trustme

import bansong as bs
from bansong.base import remote as remote_files
from bansong.base.files import RemotePath, as_path, describe_given
from bansong.base.messages import use_language
from bansong.errors import BansongError, InputError, OutputError, UsageError
from bansong.jobs.run import run_job
from bansong.run import survey
from korean import english_sentences
from s3_server import BUCKET, SECRET, S3Server, serving_s3

HEADER = "사업자등록번호,상호,주소\n"
SAMSUNG, NAVER = (
    "1248100998,삼성전자,경기도 수원시 영통구 삼성로 129\n",
    "2208162517,네이버,경기도 성남시 분당구 정자일로 95\n",
)
CSV = f"{HEADER}{SAMSUNG}{NAVER}"
ROOT = f"s3://{BUCKET}"
S3_PATH = RemotePath("s3:", BUCKET, "a.csv")


@pytest.fixture(scope="session")
def s3_process() -> Iterator[S3Server]:
    with serving_s3() as server:
        yield server


@pytest.fixture
def s3(s3_process: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3Server]:
    """The S3 server with an empty bucket, and an environment that knows it alone."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_process.settings().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(copies))
    s3_process.empty()
    yield s3_process
    assert not list(copies.iterdir()), "private copies are gone when a call ends"


# ------------------------------------------------------------------------------------------------------- URLs as paths


@pytest.mark.parametrize(
    "given", ["s3://b/가 나/명단.csv", "gs://b/a/b.parquet", "az://c/x.xlsx", "https://h.kr/d/a.csv.gz"]
)
def test_a_url_is_a_path_that_shows_as_it_was_given(given: str) -> None:
    """Its name, suffix, folder and neighbours are URLs, too, and no folder is put before it."""
    path = as_path(given)
    assert isinstance(path, RemotePath)
    assert str(path) == os.fspath(path) == given
    assert str(path.with_name("x.csv")) == given.replace(path.name, "x.csv")
    assert str(path.parent) == given.removesuffix(f"/{path.name}")
    assert not path.is_relative_to("/folder")  # it compares with every parent, and the last has no parts
    assert str(path.parents[-1]) == "."
    assert Path("/job") / path == path == as_path(Path(given))
    assert path.relative_to(path.parent) == Path(path.name)
    assert type(path.relative_to(path.parent)) is type(Path())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("https://kim:hunter2@h.kr/a.csv", "https://***@h.kr/a.csv: no user or password"),
        ("s3://AKIA:hunter2@b/a.csv", "s3://***@b/a.csv: no user or password"),
        ("az://c/a.csv?sv=1&sig=hunter2", "az://c/a.csv?***: nothing is taken from behind"),
        ("s3://b//a.csv", "s3://b//a.csv: has an empty part"),
        ("s3://b/x/../a.csv", "has an empty part"),
        ("s3://b/a\n.csv", "has an empty part, `.`, `..`, a backslash or a control character"),
    ],
)
def test_a_url_with_a_secret_or_that_a_path_would_misspell_is_refused_without_showing_it(given: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        as_path(given)
    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_the_signature_of_an_https_url_is_in_no_text_of_it() -> None:
    path = as_path("https://h.kr/a.csv?X-Amz-Signature=hunter2//x#top")
    assert isinstance(path, RemotePath)
    assert "hunter2" not in f"{path} {path!r} {os.fspath(path)} {describe_given('https://h.kr/a.csv?sig=hunter2')}"
    assert path.identity.endswith("?X-Amz-Signature=hunter2//x#top".removesuffix("#top"))


def test_a_local_name_that_begins_like_a_url_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder called ``s3:`` is read as it was before there were remote files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:" / "a.csv").write_text(CSV, "utf-8")
    assert bs.enrich(Path("s3:/a.csv"), tmp_path / "out.csv").rows == 2


# --------------------------------------------------------------------------------------------------------- in and out


def test_an_object_with_a_korean_name_and_spaces_is_enriched_beside_itself(s3: S3Server) -> None:
    """The report names URL and version, and every cell that was there is there."""
    etag = s3.put("가 나/고객 명단+1%.csv", CSV.encode())
    report = bs.enrich(f"{ROOT}/가 나/고객 명단+1%.csv")
    assert (report.input, report.output) == (
        f"{ROOT}/가 나/고객 명단+1%.csv",
        f"{ROOT}/가 나/고객 명단+1%.enriched.csv",
    )
    assert report.input_version == etag
    assert json.loads(Path(str(report.manifest)).read_text("utf-8"))["input_version"] == etag
    written = s3.get("가 나/고객 명단+1%.enriched.csv").decode()
    assert [line.startswith(before) for line, before in zip(written.splitlines(), CSV.splitlines(), strict=True)]
    assert s3.get("가 나/고객 명단+1%.csv").decode() == CSV


def test_workbooks_and_packed_files_go_in_and_out(s3: S3Server, tmp_path: Path) -> None:
    """A workbook keeps its second sheet; a local CSV becomes a packed object; side files go where they are named."""
    book = openpyxl.Workbook()
    book.active.append(["사업자등록번호", "상호", "주소"])
    book.active.append(["1248100998", "삼성전자", "경기도 수원시 영통구 삼성로 129"])
    book.create_sheet("메모")["A1"] = "그대로"
    book.save(tmp_path / "book.xlsx")
    s3.put("in/book.xlsx", (tmp_path / "book.xlsx").read_bytes())
    bs.enrich(f"{ROOT}/in/book.xlsx", f"{ROOT}/out/book.xlsx", report=f"{ROOT}/out/page.html", letters=f"{ROOT}/l.xlsx")
    (tmp_path / "back.xlsx").write_bytes(s3.get("out/book.xlsx"))
    back = openpyxl.load_workbook(tmp_path / "back.xlsx")
    assert back["메모"]["A1"].value == "그대로"
    assert back.worksheets[0].max_column == 12
    assert b"<html" in s3.get("out/page.html")[:200]
    (tmp_path / "list.csv").write_text(CSV, "utf-8")
    bs.enrich(tmp_path / "list.csv", f"{ROOT}/out/list.csv.gz", split="action", manifest=f"{ROOT}/out/run.json")
    assert s3.get("out/list.csv.gz")[:2] == b"\x1f\x8b"
    assert json.loads(s3.get("out/run.json"))["rows"] == 2
    assert "out/list.confirm.csv.gz" in s3.names()


def test_letters_to_be_sent_are_kept_in_a_bucket_too(s3: S3Server, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(CSV, "utf-8")
    for again in ("", "2"):
        s3.put("list.send.csv", b"mine\n")
        report = bs.enrich(tmp_path / "list.csv", f"{ROOT}/list.csv", split="action")
        assert report.exit_code == 3
        assert dict(report.kept) == {f"{ROOT}/list.send.csv": f"{ROOT}/list.send.csv.bak{again}"}
        assert s3.get(f"list.send.csv.bak{again}") == b"mine\n"


def test_an_object_is_replaced_in_place_only_without_a_backup(s3: S3Server) -> None:
    s3.put("a.csv", CSV.encode())
    with pytest.raises(UsageError, match="turn on the versions of its bucket, and give `backup=False`"):
        bs.enrich(f"{ROOT}/a.csv", in_place=True)
    bs.enrich(f"{ROOT}/a.csv", in_place=True, backup=False)
    assert s3.get("a.csv").decode().count("verified") == 2
    assert s3.names() == ["a.csv"]


def test_folders_and_globs_of_a_bucket_mean_its_files(s3: S3Server) -> None:
    """Outputs keep relative names; outputs of earlier runs, other files, and deeper folders are no inputs."""
    for key in ("in/a.csv", "in/b 1.csv", "in/[c].csv", "in/a.enriched.csv", "in/notes.txt.bak", "in/deep/d.csv"):
        s3.put(key, CSV.encode())
    report = bs.enrich([f"{ROOT}/in/"], f"{ROOT}/out/")
    assert [Path(part.input).name for part in report.parts] == ["[c].csv", "a.csv", "b 1.csv"]
    assert [key for key in s3.names() if key.startswith("out/")] == ["out/[c].csv", "out/a.csv", "out/b 1.csv"]
    assert len(bs.plan([f"{ROOT}/in/**/*.csv"]).parts) == 4
    assert [part.input for part in bs.plan([f"{ROOT}/in/[c].csv"]).parts] == [f"{ROOT}/in/[c].csv"]
    assert [part.input for part in bs.plan([f"{ROOT}/in/[!b]*.csv", f"{ROOT}/in/a.csv"]).parts] == [
        f"{ROOT}/in/[c].csv",
        f"{ROOT}/in/a.csv",
    ]
    with pytest.raises(InputError, match="no file with a table is there"):
        bs.plan([f"{ROOT}/nothing/*.csv"])


def test_a_partitioned_dataset_of_a_bucket_is_one_run(s3: S3Server) -> None:
    s3.put("set/sido=서울/part-0.csv", CSV.encode())
    s3.put("set/sido=부산/part-0.csv", CSV.encode())
    s3.put("set/_SUCCESS", b"")
    report = bs.enrich([f"{ROOT}/set/"])
    assert sorted(part.output for part in report.parts) == [
        f"{ROOT}/set.enriched/sido=부산/part-0.csv",
        f"{ROOT}/set.enriched/sido=서울/part-0.csv",
    ]


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("in/*", ["a.csv", "k.csv"]),
        ("i*/", ["a.csv"]),
        ("in/s*", ["k.csv"]),
        ("**/*.csv", ["a.csv", "k.csv", "p.csv"]),
        ("set/k=*", ["p.csv"]),
        ("in/.h*/*", ["h.csv"]),
    ],
)
def test_a_glob_of_a_bucket_means_what_it_means_on_a_disk(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, meant: list[str]
) -> None:
    """The tables of the folders that it means, too; nothing hidden; and no objects that only stand for folders."""
    for key in ("in/a.csv", "in/sub/k.csv", "in/.hidden/h.csv", "set/k=1/p.csv"):
        s3.put(key, CSV.encode())
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_text(CSV, "utf-8")
    for folder in ("in/", "in/sub/", "in/none/", "set/k=1/"):
        s3.put_folder(folder)
    monkeypatch.chdir(tmp_path)
    for given in (pattern, f"{ROOT}/{pattern}"):
        assert [Path(part.input).name for part in bs.plan([given]).parts] == meant


def test_a_pattern_that_means_nothing_and_a_name_that_cannot_be_read_are_told(s3: S3Server) -> None:
    s3.put("in/a.csv", CSV.encode())
    assert "no file with a table is there" in refused(lambda: bs.plan([f"{ROOT}/in/[z-a].csv"]))
    s3.put_folder("in//")
    assert "has an empty part, `.` or `..` in its name" in refused(lambda: bs.plan([f"{ROOT}/in/"]))


def test_a_review_is_read_from_the_bucket_it_was_written_to_and_sources_of_registries_are_not(
    s3: S3Server, tmp_path: Path
) -> None:
    """As the report of a run says of its review; a path that has lost a slash is the same object."""
    sources = refused(lambda: bs.build_registry([f"{ROOT}/statuses.csv"], tmp_path / "registry.parquet"))
    assert sources.startswith(f"{ROOT}/statuses.csv: is a URL, which is not read for this; copy the file here")
    s3.put("no-review.csv", CSV.encode())
    assert f"{ROOT}/no-review.csv: is no review" in refused(lambda: bs.apply_review(Path(f"{ROOT}/no-review.csv")))


@pytest.mark.parametrize("option", ["registry", "gazetteer", "model", "labels"])
def test_what_stays_on_this_machine_is_not_looked_for_at_a_url(option: str, tmp_path: Path) -> None:
    """That there is no such file would send people looking for the wrong fault."""
    (tmp_path / "in.csv").write_text(CSV, "utf-8")
    options: Any = {option: f"{ROOT}/{option}.parquet"}
    with pytest.raises(BansongError, match=rf"{ROOT}/{option}\.parquet: is a URL, which is not read for this; copy"):
        bs.enrich(tmp_path / "in.csv", tmp_path / "out.csv", **options)


# ------------------------------------------------------------------------------------------------ somebody else writes


@contextmanager
def once_before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], object]) -> Iterator[None]:
    """Act once, just before a function is called."""
    todo, call = [act], getattr(owner, name)

    def acting(*given: Any, **more: Any) -> Any:
        if todo:
            todo.pop()()
        return call(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, acting)
        yield
    assert not todo


@pytest.mark.parametrize("before", [None, b"old"])
def test_an_output_that_somebody_else_wrote_meanwhile_is_not_overwritten(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes | None
) -> None:
    """Whether it was there before or not, it is theirs afterwards, and no manifest says that a run wrote it."""
    (tmp_path / "in.csv").write_text(CSV, "utf-8")
    if before is not None:
        s3.put("out.csv", before)
    said = "changed or removed this object" if before else "written this object"
    with (
        once_before(monkeypatch, remote_files, "upload_object", lambda: s3.put("out.csv", b"theirs")),
        pytest.raises(OutputError, match=f"{ROOT}/out.csv: somebody else has {said} meanwhile; it was not overwritten"),
    ):
        bs.enrich(tmp_path / "in.csv", f"{ROOT}/out.csv", manifest=tmp_path / "run.json")
    assert s3.get("out.csv") == b"theirs"
    assert not (tmp_path / "run.json").exists()


def test_an_input_replaced_in_place_must_be_the_version_that_was_read(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that was added between reading and writing is not lost."""
    s3.put("a.csv", CSV.encode())
    with (
        once_before(monkeypatch, survey, "prepare_output", lambda: s3.put("a.csv", b"more")),
        pytest.raises(OutputError, match="somebody else has changed"),
    ):
        bs.enrich(f"{ROOT}/a.csv", in_place=True, backup=False)
    assert s3.get("a.csv") == b"more"


def test_an_input_that_changes_while_it_is_read_is_refused(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read is of the version that is reported, or nothing is."""
    s3.put("a.csv", CSV.encode())
    with (
        once_before(monkeypatch, remote_files, "download_object", lambda: s3.put("a.csv", b"other")),
        pytest.raises(InputError, match=f"{ROOT}/a.csv: was changed while it was being read; run again"),
    ):
        bs.enrich(f"{ROOT}/a.csv")
    assert s3.names() == ["a.csv"]


def test_a_write_whose_answer_was_lost_counts_as_made(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by a mark of its own, so that nobody runs again for an object that is there."""
    run = remote_files.run_until_interrupted

    def losing(operation: Any) -> Any:
        done = run(operation)
        if operation.__name__ == "upload":
            raise remote_files._error_types()[0]("connection reset")
        return done

    s3.put("a.csv", CSV.encode())
    monkeypatch.setattr(remote_files, "run_until_interrupted", losing)
    bs.enrich(f"{ROOT}/a.csv", f"{ROOT}/out.csv")
    assert s3.get("out.csv").decode().count("verified") == 2


# ---------------------------------------------------------------------------------------------- what is said, and not


def refused(call: Callable[[], object]) -> str:
    """Return what a call says that fails; it may not take long, and may not say the secret."""
    with pytest.raises((InputError, OutputError, UsageError)) as raised:
        call()
    assert SECRET not in str(raised.value)
    assert "AKIA" not in str(raised.value)
    return str(raised.value)


def test_what_is_not_there_is_said_before_anything_is_done(s3: S3Server, tmp_path: Path) -> None:
    """No object, no bucket, a folder, a kind of URL that is not written: each has its sentence."""
    (tmp_path / "in.csv").write_text(CSV, "utf-8")
    assert refused(lambda: bs.enrich(f"{ROOT}/no.csv")) == f"{ROOT}/no.csv: there is no such object; check its name"
    assert "there is no bucket or container elsewhere" in refused(lambda: bs.enrich("s3://elsewhere/NoSuchKey.csv"))
    assert "there is no bucket" in refused(lambda: bs.enrich(tmp_path / "in.csv", "s3://elsewhere/out.csv"))
    assert "is a folder; name a file in it" in refused(lambda: bs.enrich(tmp_path / "in.csv", f"{ROOT}/out.csv/"))
    assert "nothing is written to web servers" in refused(lambda: bs.enrich(tmp_path / "in.csv", "https://h.kr/o.csv"))
    assert "is no name of a bucket" in refused(lambda: bs.enrich("s3://고객/in.csv"))
    assert s3.names() == []


class Refusing(BaseHTTPRequestHandler):
    """Answers every request with what its server was told."""

    def do_GET(self) -> None:
        status, code = self.server.told  # type: ignore[attr-defined]
        body = f"<Error><Code>{code}</Code><AWSAccessKeyId>AKIATESTTESTTESTTEST</AWSAccessKeyId></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: object) -> None:
        pass


@contextmanager
def http_server(handler: type[BaseHTTPRequestHandler], **given: object) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.__dict__.update(given)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "AccessDenied", "these credentials may not do that; the owner of the bucket has to allow"),
        (403, "InvalidAccessKeyId", "the store does not accept the credentials; check AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "the store does not accept the credentials"),
        (400, "ExpiredToken", "the credentials have expired; sign in again"),
        (403, "RequestTimeTooSkewed", "the clock of this machine differs"),
        (409, "ConditionalRequestConflict", "somebody else is writing this object right now; it was not overwritten"),
        (301, "PermanentRedirect", "the bucket is in another region; set AWS_REGION"),
        (503, "SlowDown", "the store has failed, or is too busy; try again later"),
        (418, "Teapot", "the store refused, or could not be understood"),
    ],
)
def test_what_a_store_refuses_is_a_sentence_with_the_remedy_and_without_keys(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, status: int, code: str, said: str
) -> None:
    with http_server(Refusing, told=(status, code)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        assert f"{ROOT}/ExpiredToken.csv: {said}" in refused(lambda: bs.enrich(f"{ROOT}/ExpiredToken.csv"))


def test_a_store_that_is_not_there_and_settings_that_are_none_are_told(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No network, no TLS, no credentials, a profile without keys, unreadable settings; a profile with keys works."""
    s3.put("a.csv", CSV.encode())
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert "the store cannot be reached" in refused(lambda: bs.plan(f"{ROOT}/a.csv"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:hunter2@store.example:9000")
    plain = refused(lambda: bs.plan(f"{ROOT}/a.csv"))
    assert "the endpoint store.example is without TLS" in plain
    assert "hunter2" not in plain
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    (tmp_path / ".aws").mkdir()
    keys = f"[mine]\naws_access_key_id = AKIAMINE\naws_secret_access_key = {SECRET}\n"
    (tmp_path / ".aws" / "credentials").write_text(keys)
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert bs.plan(f"{ROOT}/a.csv").rows == 2
    monkeypatch.setenv("AWS_PROFILE", "roles")
    assert "aws configure export-credentials" in refused(lambda: bs.plan(f"{ROOT}/a.csv"))
    (tmp_path / ".aws" / "credentials").write_text(f"{SECRET} without a section")
    assert "cannot be read as the settings of AWS" in refused(lambda: bs.plan(f"{ROOT}/a.csv"))


@pytest.mark.parametrize("url", ["gs://bucket/a.csv", "az://container/a.csv"])
def test_without_an_account_google_and_azure_say_which_settings_are_looked_for(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    if url.startswith("gs"):
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/nowhere.json")
    assert url in refused(lambda: bs.plan(url))


@pytest.mark.parametrize("given", ["no.csv", "no.csv?x", "a//b.csv", "in/", "none/*.csv"])
def test_what_is_wrong_with_a_url_is_said_in_korean(s3: S3Server, given: str) -> None:
    with use_language("ko"):
        said = refused(lambda: bs.plan([f"{ROOT}/{given}"]))
    assert english_sentences(said.replace(ROOT, "")) == []
    assert said.endswith(("니다", "세요"))


class Conditions(BaseHTTPRequestHandler):
    """Keeps objects as Azure and Google Cloud Storage do, and on which condition each was written."""

    protocol_version = "HTTP/1.1"
    _VERSION: ClassVar = {"ETag": '"e17"', "x-goog-generation": "17", "Last-Modified": "Mon, 23 Nov 2026 00:00:00 GMT"}

    def do_GET(self) -> None:
        content = self.server.objects.get(self.path)  # type: ignore[attr-defined]
        self._answer(404 if content is None else 200, content or b"")

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.objects[self.path] = content  # type: ignore[attr-defined]
        known = ("if-match", "if-none-match", "x-goog-if-generation-match")
        said = {name: self.headers[name] for name in known if name in self.headers}
        self.server.conditions.append(said)  # type: ignore[attr-defined]
        self._answer(201, b"")

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        for name, value in (self._VERSION | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *given: object) -> None:
        pass


@pytest.mark.parametrize(
    ("root", "conditions", "version"),
    [
        ("az://container", [{"if-none-match": "*"}, {"if-match": '"e17"'}], '"e17"'),
        ("gs://bucket", [{"x-goog-if-generation-match": "0"}, {"x-goog-if-generation-match": "17"}], "17"),
    ],
)
def test_azure_and_google_are_written_to_on_condition(
    root: str,
    conditions: list[dict[str, str]],
    version: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A new object only where there is none, another one only over the version that was seen; and it is read back."""
    (tmp_path / "in.csv").write_text(CSV, "utf-8")
    objects: dict[str, bytes] = {}
    written: list[dict[str, str]] = []
    with http_server(Conditions, objects=objects, conditions=written) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        account = {
            "gcs_base_url": url,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        (tmp_path / "account.json").write_text(json.dumps(account))
        for name, value in {
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_STORAGE_ACCOUNT_KEY": "a2V5",
            "AZURE_STORAGE_ENDPOINT": url,
            "GOOGLE_SERVICE_ACCOUNT": str(tmp_path / "account.json"),
            "GOOGLE_ALLOW_HTTP": "true",
        }.items():
            monkeypatch.setenv(name, value)
        for _ in range(2):
            bs.enrich(tmp_path / "in.csv", f"{root}/out.csv")
        assert written == conditions
        assert bs.enrich(f"{root}/out.csv", tmp_path / "back.csv").input_version == version


def test_without_the_extra_the_command_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading, listing and writing alike; and an https URL needs none."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    assert "cannot be reached" in refused(lambda: bs.plan("https://127.0.0.1:9/a.csv"))
    for call in (lambda: bs.plan([f"{ROOT}/*.csv"]), lambda: remote_files.upload_object(Path(__file__), S3_PATH, None)):
        assert refused(call).endswith('need an extra: pip install "bansong[cloud]"')
    assert refused(lambda: bs.plan(f"{ROOT}/a.csv")).endswith('need an extra: pip install "bansong[cloud]"')


def test_a_disk_without_room_and_an_object_too_large_are_told_before_it_is_too_late(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put("a.csv", CSV.encode())
    monkeypatch.setattr(remote_files, "LARGEST", 10)
    assert "objects are written in one piece of at most 10; pack it (.gz)" in refused(
        lambda: bs.enrich(f"{ROOT}/a.csv", f"{ROOT}/b.csv")
    )
    monkeypatch.setattr(remote_files, "_LEFT_FREE_BYTES", 1 << 60)
    assert "TMPDIR chooses where copies are made" in refused(lambda: bs.enrich(f"{ROOT}/a.csv"))
    assert s3.names() == ["a.csv"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full is made of /dev/full")
def test_a_disk_that_is_full_names_the_object_and_tmpdir_not_a_private_copy(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fill(source: object, target: Path, *rest: object, **more: object) -> None:
        with Path("/dev/full").open("wb", 0) as file:
            file.write(b"x")

    (tmp_path / "in.csv").write_text(CSV, "utf-8")
    with monkeypatch.context() as patch:
        patch.setattr("bansong.tables.csv.format.write", fill)
        said = refused(lambda: bs.enrich(tmp_path / "in.csv", f"{ROOT}/out.csv"))
    assert said.startswith(f"{ROOT}/out.csv: cannot be written on this machine before it is sent: No space left")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    said = refused(lambda: bs.enrich(tmp_path / "in.csv", f"{ROOT}/out.csv"))
    assert said.startswith(f"{ROOT}/out.csv: cannot be written on this machine before it is sent")
    s3.put("a.csv", CSV.encode())
    assert f"{ROOT}/a.csv: cannot be copied here" in refused(lambda: bs.plan(f"{ROOT}/a.csv"))
    assert s3.names() == ["a.csv"]


# -------------------------------------------------------------------------------------------------------------- https


class Files(BaseHTTPRequestHandler):
    """A web server with one file, one that leads to it, one that leads to plain HTTP, one that ends too early."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/signed.csv" and query != "sig=hunter2%2F%2Fx":
            self.send_error(403)
        elif path in ("/list.csv", "/signed.csv"):
            self._answer(200, {"ETag": '"v7"', "Content-Length": str(len(CSV.encode()))})
            self.wfile.write(CSV.encode())
        elif path == "/cut.csv":
            self._answer(200, {"Content-Length": "10000"})
            self.wfile.write(CSV.encode())
            self.close_connection = True
        elif path == "/moved.csv":
            self._answer(302, {"Location": "/list.csv", "Content-Length": "0"})
        elif path == "/round.csv":
            self._answer(302, {"Location": "/round.csv", "Content-Length": "0"})
        elif path == "/plain.csv":
            self._answer(302, {"Location": "http://127.0.0.1/list.csv", "Content-Length": "0"})
        else:
            self.send_error(404)

    def _answer(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *given: object) -> None:
        pass


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The URL of a web server with a certificate that is trusted."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with http_server(Files) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        yield f"https://127.0.0.1:{server.server_port}"


def test_a_file_of_the_web_is_read_and_its_signature_is_nowhere(web: str, tmp_path: Path) -> None:
    """Not in the report, the manifest, nor in the output's name; redirects are followed; the version is reported."""
    report = bs.enrich(f"{web}/signed.csv?sig=hunter2%2F%2Fx", tmp_path / "out.csv")
    assert (report.rows, report.input, report.input_version) == (2, f"{web}/signed.csv", '"v7"')
    assert "hunter2" not in Path(str(report.manifest)).read_text("utf-8") + repr(report)
    several = bs.enrich([f"{web}/signed.csv?sig=hunter2%2F%2Fx", f"{web}/moved.csv"], tmp_path / "outputs")
    assert several.rows == 4
    assert "hunter2" not in Path(str(several.manifest)).read_text("utf-8")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/none.csv", "there is no such file (404)"),
        ("/signed.csv?sig=hunter3", "may not be read by whoever has its URL (403)"),
        ("/cut.csv", "cannot be reached, or was cut off"),
        ("/round.csv", "leads from one URL to the next without end"),
        ("/plain.csv", "leads to a URL without TLS"),
        ("/list.csv/", "a web server has no list of its files"),
    ],
)
def test_what_the_web_does_not_give_is_told(web: str, path: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        bs.plan([f"{web}{path}"])
    assert said in str(refused.value)
    assert "hunter3" not in str(refused.value)


def test_an_untrusted_certificate_is_refused(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(InputError, match="cannot be reached"):
        bs.plan(f"{web}/list.csv")


@pytest.mark.parametrize(
    ("variable", "value"), [("SSL_CERT_FILE", "/nowhere.pem"), ("HTTPS_PROXY", "socks9://hunter2")]
)
def test_settings_of_the_network_that_cannot_be_used_are_named(
    monkeypatch: pytest.MonkeyPatch, web: str, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=f"cannot be used; check .*{variable}") as refused:
        bs.plan(f"{web}/list.csv")
    assert "hunter2" not in str(refused.value)


def test_a_job_keeps_no_signature_and_no_input_of_two_that_are_shown_alike(web: str, tmp_path: Path) -> None:
    """What it says of a URL that means no file is remembered without its query; two that differ there are refused."""
    text = '[[inputs]]\npath = "{}"\n[output]\npath = "{{name}}.{{ext}}"\n'
    (tmp_path / "job.toml").write_text(text.format(f"{web}/folder/?sig=hunter2"), "utf-8")
    report = run_job(tmp_path / "job.toml")
    assert report.exit_code == 2
    assert "hunter2" not in repr(report.as_dict())
    two = text.format(f"{web}/list.csv?id=1").replace("[output]", f'[[inputs]]\npath = "{web}/list.csv?id=2"\n[output]')
    (tmp_path / "job.toml").write_text(two, "utf-8")
    with pytest.raises(UsageError, match="differ only behind the `\\?`"):
        run_job(tmp_path / "job.toml")


def test_urls_that_differ_in_their_query_alone_are_not_one_input(web: str) -> None:
    with pytest.raises(UsageError, match="differ only behind the `\\?`") as refused:
        bs.plan([f"{web}/list.csv?id=1", f"{web}/list.csv?id=2"])
    assert "id=1" not in str(refused.value)


# -------------------------------------------------------------------------------------------- jobs, labels, pages, CLI


def test_a_job_reads_and_writes_objects_and_knows_them_by_their_versions(s3: S3Server, tmp_path: Path) -> None:
    """An unchanged object is not fetched again; a changed one is verified; a lost output is written again."""
    s3.put("in/a.csv", CSV.encode())
    (tmp_path / "job.toml").write_text(
        f"""
        [[inputs]]
        path = "{ROOT}/in/*.csv"
        [output]
        path = "{ROOT}/out/{{folder}}/{{name}}.{{ext}}"
        latest = "{ROOT}/latest.csv"
        changes = "{ROOT}/changes.{{date}}.csv"
        """,
        "utf-8",
    )
    what = lambda: [one.what for one in run_job(tmp_path / "job.toml").inputs]  # noqa: E731 - read again and again
    assert (what(), what()) == (["verified"], ["unchanged"])
    assert s3.names() == ["in/a.csv", "latest.csv", "out/a.csv"]
    s3.put("in/a.csv", f"{HEADER}{SAMSUNG}".encode())
    assert (what(), what()) == (["verified"], ["unchanged"])
    s3.put("out/a.csv", b"somebody's")
    assert what() == ["verified"]
    assert s3.get("out/a.csv") == s3.get("latest.csv")
    assert [key for key in s3.names() if key.startswith("changes.")] != []


def test_a_job_knows_a_file_of_the_web_by_its_content(web: str, tmp_path: Path) -> None:
    """A web server need not say versions, so the file is fetched; what has not changed is not verified again."""
    text = f'[[inputs]]\npath = "{web}/list.csv"\n[output]\npath = "{{name}}.{{ext}}"\n'
    (tmp_path / "job.toml").write_text(text, "utf-8")
    assert [run_job(tmp_path / "job.toml").inputs[0].what for _ in range(2)] == ["verified", "unchanged"]


def test_a_file_of_the_web_is_not_replaced_in_place(web: str) -> None:
    with pytest.raises(OutputError, match="nothing is written to web servers"):
        bs.enrich(f"{web}/list.csv", in_place=True, backup=False)


def test_outcomes_are_recorded_for_an_enriched_object_and_its_page_is_written(s3: S3Server, tmp_path: Path) -> None:
    """`label` and `report` find the object by a manifest that is one, too; the object itself is not labelled over."""
    s3.put("a.csv", CSV.encode())
    run = f"{ROOT}/run.json"
    bs.enrich(f"{ROOT}/a.csv", manifest=run)
    s3.put("back.csv", "사업자등록번호,반송여부\n1248100998,Y\n2208162517,N\n".encode())
    given: dict[str, Any] = {"mailed": "2026-10-05", "returns_requested": True, "book": tmp_path / "book"}
    over = refused(lambda: bs.label(f"{ROOT}/back.csv", run=run, output=f"{ROOT}/a.enriched.csv", **given))
    assert "is the enriched file itself" in over
    report = bs.label(f"{ROOT}/back.csv", run=run, output=f"{ROOT}/labelled.csv", **given)
    assert report.output == f"{ROOT}/labelled.csv"
    assert "bounced" in s3.get("labelled.csv").decode().splitlines()[0]
    environment = {**os.environ, **s3.settings()}
    for named in (run, f"{ROOT}/a.enriched.csv"):
        command = [sys.executable, "-m", "bansong", "report", named, "-o", f"{ROOT}/page.html"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.stdout == f"{ROOT}/page.html written\n", done.stderr
