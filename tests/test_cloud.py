"""Remote files: what s3:// and https:// URLs give and take, and what is said where they do not."""

from __future__ import annotations

import json
import os
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner

import bansong as bs
from bansong.base import remote
from bansong.base.files import RemotePath, as_path, describe_given
from bansong.base.messages import use_language
from bansong.base.remote import fetch_file, look_at_object, look_at_output, publish_remote
from bansong.cli.app import app as cli
from bansong.errors import BansongError, InputError, OutputError, UsageError
from bansong.jobs.run import run_job
from bansong.run import survey
from bansong.tables.inputs import find_files
from korean import english_sentences
from s3_server import BUCKET, SECRET, S3Server, serving_s3

HEADER = "사업자등록번호,상호,주소\n"
SAMSUNG = "1248100998,삼성전자,경기도 수원시 영통구 삼성로 129\n"
CSV = f"{HEADER}{SAMSUNG}2208162517,네이버,경기도 성남시 분당구 정자일로 95\n"
ROOT = f"s3://{BUCKET}"


def url(name: str, root: str = ROOT) -> RemotePath:
    path = as_path(f"{root}/{name}")
    assert isinstance(path, RemotePath)
    return path


@pytest.fixture(scope="session")
def s3_process() -> Iterator[S3Server]:
    with serving_s3() as server:
        yield server


@pytest.fixture
def s3(s3_process: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3Server]:
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


def refused(call: Callable[[], object]) -> str:
    """Return what a call says that fails; it may not take long, and may not say the secret."""
    with pytest.raises((InputError, OutputError, UsageError)) as raised:
        call()
    assert SECRET not in str(raised.value)
    assert "AKIA" not in str(raised.value)
    return str(raised.value)


def fetch(path: Any) -> None:
    with fetch_file(path):
        pass


def publish(path: RemotePath, content: bytes) -> None:
    with publish_remote(path) as file:
        file.write_bytes(content)


Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def http_server(answer: Callable[[str, str, Any, bytes], Answer]) -> Iterator[ThreadingHTTPServer]:
    """A server that answers by method, path, headers and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            status, headers, content = answer(self.command, self.path, self.headers, body)
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(content))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_PUT = do_GET

        def log_message(self, *given: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


MISSPELT = {
    "https://kim:hunter2@h.kr/a.csv": "https://***@h.kr/a.csv: no user or password",
    "s3://AKIA:hunter2@b/a.csv": "s3://***@b/a.csv: no user or password",
    "az://c/a.csv?sv=1&sig=hunter2": "az://c/a.csv?***: nothing is taken from behind",
    "s3://b//a.csv": "s3://b//a.csv: has an empty part",
    "s3://b/x/../a.csv": "has an empty part",
    "s3://b/a\n.csv": "has an empty part, `.`, `..`, a backslash or a control character",
}


def test_a_url_with_a_secret_or_that_a_path_would_misspell_is_refused_without_showing_it() -> None:
    for given, said in MISSPELT.items():
        with pytest.raises(UsageError) as caught:
            as_path(given)
        assert said in str(caught.value)
        assert "hunter2" not in str(caught.value)
    path = as_path("https://h.kr/a.csv?X-Amz-Signature=hunter2//x#top")
    assert isinstance(path, RemotePath)
    assert "hunter2" not in f"{path} {path!r} {os.fspath(path)} {describe_given('https://h.kr/a.csv?sig=hunter2')}"
    assert path.identity.endswith("?X-Amz-Signature=hunter2//x")


def test_a_local_name_that_begins_like_a_url_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:" / "a.csv").write_text(CSV, "utf-8")
    assert [str(one.path) for one in find_files(Path("s3:/a.csv"))] == ["s3:/a.csv"]


def test_an_object_with_a_korean_name_and_spaces_is_enriched_beside_itself(s3: S3Server) -> None:
    etag = s3.put("가 나/고객 명단+1%.csv", CSV.encode())
    report = bs.enrich(f"{ROOT}/가 나/고객 명단+1%.csv")
    assert report.input == f"{ROOT}/가 나/고객 명단+1%.csv"
    assert report.output == f"{ROOT}/가 나/고객 명단+1%.enriched.csv"
    assert report.input_version == etag
    assert json.loads(Path(str(report.manifest)).read_text("utf-8"))["input_version"] == etag
    written = s3.get("가 나/고객 명단+1%.enriched.csv").decode()
    assert [line.startswith(before) for line, before in zip(written.splitlines(), CSV.splitlines(), strict=True)]
    assert s3.get("가 나/고객 명단+1%.csv").decode() == CSV


def test_a_list_becomes_packed_objects_and_letters_that_were_edited_are_kept(s3: S3Server, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(CSV, "utf-8")
    s3.put("out/list.send.csv.gz", b"mine\n")
    report = bs.enrich(tmp_path / "list.csv", f"{ROOT}/out/list.csv.gz", split="action")
    assert s3.get("out/list.csv.gz")[:2] == b"\x1f\x8b"
    assert "out/list.confirm.csv.gz" in s3.names()
    assert report.exit_code == 3
    ((kept, backup),) = dict(report.kept).items()
    assert (kept, s3.get(backup.removeprefix(f"{ROOT}/"))) == (f"{ROOT}/out/list.send.csv.gz", b"mine\n")


def test_an_object_is_replaced_in_place_only_without_a_backup(s3: S3Server) -> None:
    s3.put("a.csv", CSV.encode())
    with pytest.raises(UsageError, match="turn on the versions of its bucket, and give `backup=False`"):
        bs.enrich(f"{ROOT}/a.csv", in_place=True)
    bs.enrich(f"{ROOT}/a.csv", in_place=True, backup=False)
    assert s3.get("a.csv").decode().count("verified") == 2
    assert s3.names() == ["a.csv"]


def test_folders_and_partitions_of_a_bucket_are_one_run(s3: S3Server) -> None:
    for key in ("in/a.csv", "in/[c].csv", "in/a.enriched.csv", "in/notes.txt.bak", "in/deep/d.csv"):
        s3.put(key, CSV.encode())
    bs.enrich([f"{ROOT}/in/"], f"{ROOT}/out/")
    assert [key for key in s3.names() if key.startswith("out/")] == ["out/[c].csv", "out/a.csv"]
    for key in ("set/sido=서울/part-0.csv", "set/sido=부산/part-0.csv"):
        s3.put(key, CSV.encode())
    s3.put("set/_SUCCESS", b"")
    outputs = sorted(str(part.output) for part in bs.enrich([f"{ROOT}/set/"]).parts)
    root = f"{ROOT}/set.enriched"
    assert outputs == [f"{root}/sido=부산/part-0.csv", f"{root}/sido=서울/part-0.csv"]


GLOBS = {
    "in/*": ["a.csv", "k.csv"],
    "i*/": ["a.csv"],
    "in/s*": ["k.csv"],
    "in/[!b]*.csv": ["a.csv"],
    "**/*.csv": ["a.csv", "k.csv", "p.csv"],
    "set/k=*": ["p.csv"],
    "in/.h*/*": ["h.csv"],
    "none/*": [],
    "in/[z-a].csv": [],
}


def test_a_glob_of_a_bucket_means_what_it_means_on_a_disk(s3: S3Server, tmp_path: Path) -> None:
    for key in ("in/a.csv", "in/sub/k.csv", "in/.hidden/h.csv", "set/k=1/p.csv"):
        s3.put(key, CSV.encode())
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_text(CSV, "utf-8")
    for folder in ("in/", "in/sub/", "in/none/", "set/k=1/"):
        s3.put_folder(folder)
    for root in (str(tmp_path), ROOT):
        assert {glob: [one.path.name for one in found(f"{root}/{glob}")] for glob in GLOBS} == GLOBS
    s3.put_folder("in//")
    assert "has an empty part, `.` or `..` in its name" in refused(lambda: find_files(f"{ROOT}/in/"))


def found(given: str) -> list[Any]:
    try:
        return find_files(given)
    except InputError as error:
        return [] if "no file with a table is there" in str(error) else [error]


def test_what_stays_on_this_machine_is_not_looked_for_at_a_url(s3: S3Server, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(CSV, "utf-8")
    for option in ("registry", "gazetteer", "model", "labels"):
        options: Any = {option: f"{ROOT}/{option}.parquet"}
        with pytest.raises(BansongError, match=r"parquet: is a URL, which is not read for this; copy"):
            bs.enrich(tmp_path / "in.csv", tmp_path / "out.csv", **options)
    sources = refused(lambda: bs.build_registry([f"{ROOT}/statuses.csv"], tmp_path / "registry.parquet"))
    assert "is a URL, which is not read for this" in sources
    s3.put("no-review.csv", CSV.encode())  # a review is; a path that has lost a slash is the same object
    assert f"{ROOT}/no-review.csv: is no review" in refused(lambda: bs.apply_review(Path(f"{ROOT}/no-review.csv")))


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
    (tmp_path / "in.csv").write_text(CSV, "utf-8")
    if before is not None:
        s3.put("out.csv", before)
    said = "changed or removed this object" if before else "written this object"
    given: Any = {"input": tmp_path / "in.csv", "output": f"{ROOT}/out.csv", "manifest": tmp_path / "run.json"}
    with once_before(monkeypatch, remote, "upload_object", lambda: s3.put("out.csv", b"theirs")):
        words = refused(lambda: bs.enrich(**given))
    assert f"{ROOT}/out.csv: somebody else has {said} meanwhile; it was not overwritten" in words
    assert s3.get("out.csv") == b"theirs"
    assert not (tmp_path / "run.json").exists()


def test_an_input_that_changes_is_neither_read_in_two_versions_nor_replaced(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put("a.csv", CSV.encode())
    with once_before(monkeypatch, remote, "download_object", lambda: s3.put("a.csv", CSV.encode()[::-1])):
        assert "was changed while it was being read; run again" in refused(lambda: fetch(url("a.csv")))
    s3.put("a.csv", CSV.encode())
    with once_before(monkeypatch, survey, "prepare_output", lambda: s3.put("a.csv", b"more")):
        said = refused(lambda: bs.enrich(f"{ROOT}/a.csv", in_place=True, backup=False))
    assert "somebody else has changed" in said
    assert s3.get("a.csv") == b"more"


def test_a_write_whose_answer_was_lost_counts_as_made(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    run = remote.run_until_interrupted

    def losing(operation: Any) -> Any:
        done = run(operation)
        if operation.__name__ == "upload":
            raise remote._error_types()[0]("connection reset")
        return done

    monkeypatch.setattr(remote, "run_until_interrupted", losing)
    publish(url("out.csv"), b"ours")
    assert s3.get("out.csv") == b"ours"


def test_what_is_not_there_is_said_before_anything_is_done(s3: S3Server, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(CSV, "utf-8")
    assert refused(lambda: bs.enrich(f"{ROOT}/no.csv")) == f"{ROOT}/no.csv: there is no such object; check its name"
    assert "there is no bucket" in refused(lambda: bs.enrich(tmp_path / "in.csv", "s3://elsewhere/out.csv"))
    for given, words in {
        "s3://elsewhere/NoSuchKey.csv": "there is no bucket or container elsewhere",
        f"{ROOT}/out.csv/": "is a folder; name a file in it",
        "https://h.kr/o.csv": "nothing is written to web servers",
        "s3://고객/in.csv": "is no name of a bucket",
    }.items():
        path: Any = as_path(given)
        assert words in refused(lambda path=path: look_at_output(path))  # type: ignore[misc]
    assert s3.names() == []
    with use_language("ko"):
        for name in ("no.csv", "no.csv?x", "a//b.csv", "in/", "none/*.csv"):
            said = refused(lambda name=name: bs.plan([f"{ROOT}/{name}"]))  # type: ignore[misc]
            assert english_sentences(said.replace(ROOT, "")) == []
            assert said.endswith(("니다", "세요"))


REFUSALS = {
    (403, "AccessDenied"): "these credentials may not do that; the owner of the bucket has to allow",
    (403, "InvalidAccessKeyId"): "the store does not accept the credentials; check AWS_ACCESS_KEY_ID",
    (403, "SignatureDoesNotMatch"): "the store does not accept the credentials",
    (400, "ExpiredToken"): "the credentials have expired; sign in again",
    (403, "RequestTimeTooSkewed"): "the clock of this machine differs",
    (409, "ConditionalRequestConflict"): "somebody else is writing this object right now; it was not overwritten",
    (301, "PermanentRedirect"): "the bucket is in another region; set AWS_REGION",
    (503, "SlowDown"): "the store has failed, or is too busy; try again later",
    (418, "Teapot"): "the store refused, or could not be understood",
}


def test_what_a_store_refuses_is_a_sentence_with_the_remedy_and_without_keys(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_MAX_RETRIES", 0)
    told = iter(REFUSALS)

    def refuse(*_: object) -> Answer:
        status, code = next(told)
        key = "<AWSAccessKeyId>AKIATESTTESTTEST</AWSAccessKeyId>"
        return status, {}, f"<Error><Code>{code}</Code>{key}</Error>".encode()

    with http_server(refuse) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        for said in REFUSALS.values():
            assert f"{ROOT}/ExpiredToken.csv: {said}" in refused(lambda: look_at_object(url("ExpiredToken.csv")))


def test_a_store_that_is_not_there_and_settings_that_are_none_are_told(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    s3.put("a.csv", CSV.encode())
    look: Callable[[], object] = lambda: look_at_object(url("a.csv"))  # noqa: E731
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert "the store cannot be reached" in refused(look)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:hunter2@store.example:9000")
    assert "the endpoint store.example is without TLS" in refused(look)
    assert "hunter2" not in refused(look)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    (tmp_path / ".aws").mkdir()
    keys = f"[mine]\naws_access_key_id = AKIAMINE\naws_secret_access_key = {SECRET}\n"
    (tmp_path / ".aws" / "credentials").write_text(keys)
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert look() is not None
    monkeypatch.setenv("AWS_PROFILE", "roles")
    assert "aws configure export-credentials" in refused(look)
    (tmp_path / ".aws" / "credentials").write_text(f"{SECRET} without a section")
    assert "cannot be read as the settings of AWS" in refused(look)
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/nowhere.json")
    for root in ("gs://bucket", "az://container"):
        assert root in refused(lambda root=root: look_at_object(url("a.csv", root)))  # type: ignore[misc]


_VERSION = {"ETag": '"e17"', "x-goog-generation": "17", "Last-Modified": "Mon, 23 Nov 2026 00:00:00 GMT"}


@pytest.mark.parametrize(
    ("root", "conditions", "version"),
    [
        ("az://container", [{"if-none-match": "*"}, {"if-match": '"e17"'}], '"e17"'),
        ("gs://bucket", [{"x-goog-if-generation-match": "0"}, {"x-goog-if-generation-match": "17"}], "17"),
    ],
)
def test_azure_and_google_are_written_to_on_condition(
    root: str, conditions: list[dict[str, str]], version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    objects: dict[str, bytes] = {}
    written: list[dict[str, str]] = []

    def keep(method: str, path: str, headers: Any, body: bytes) -> Answer:
        if method == "GET":
            return (200, _VERSION, objects[path]) if path in objects else (404, _VERSION, b"")
        objects[path] = body
        known = ("if-match", "if-none-match", "x-goog-if-generation-match")
        written.append({name: headers[name] for name in known if name in headers})
        return 201, _VERSION, b""

    with http_server(keep) as server:
        place = f"http://127.0.0.1:{server.server_port}"
        account = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        (tmp_path / "account.json").write_text(json.dumps(account | {"gcs_base_url": place, "disable_oauth": True}))
        for name, value in {
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_STORAGE_ACCOUNT_KEY": "a2V5",
            "AZURE_STORAGE_ENDPOINT": place,
            "GOOGLE_SERVICE_ACCOUNT": str(tmp_path / "account.json"),
            "GOOGLE_ALLOW_HTTP": "true",
        }.items():
            monkeypatch.setenv(name, value)
        for content in (b"1", b"2"):
            publish(url("out.csv", root), content)
        assert written == conditions
        with fetch_file(url("out.csv", root)) as data:
            assert data.path.read_bytes() == b"2"
            assert data.version is not None
            assert data.version.label == version


def test_without_the_extra_the_command_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    assert "cannot be reached" in refused(lambda: bs.plan("https://127.0.0.1:9/a.csv"))
    calls: tuple[Callable[[], object], ...] = (
        lambda: find_files(f"{ROOT}/*.csv"),
        lambda: look_at_object(url("a.csv")),
        lambda: remote.upload_object(Path(__file__), url("a.csv"), None),
    )
    for call in calls:
        assert refused(call).endswith('need an extra: pip install "bansong[cloud]"')


def test_a_disk_without_room_and_an_object_too_large_are_told_before_it_is_too_late(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    s3.put("a.csv", CSV.encode())

    look: Callable[[], object] = lambda: fetch(url("a.csv"))  # noqa: E731
    monkeypatch.setattr(remote, "LARGEST", 10)
    words = "objects are written in one piece of at most 10; pack it (.gz)"
    assert words in refused(lambda: publish(url("b.csv"), CSV.encode()))
    with monkeypatch.context() as patch:
        patch.setattr(remote, "_LEFT_FREE_BYTES", 1 << 60)
        assert "TMPDIR chooses where copies are made" in refused(look)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert "/b.csv: cannot be written on this machine before it is sent" in refused(
        lambda: publish(url("b.csv"), CSV.encode())
    )
    assert "/a.csv: cannot be copied here" in refused(look)
    assert s3.names() == ["a.csv"]


def files(method: str, path: str, headers: object, body: bytes) -> Answer:
    """A web server with one file, one that leads to it, one that leads to plain HTTP, one that ends too early."""
    led = {"/moved.csv": "/list.csv", "/round.csv": "/round.csv", "/plain.csv": "http://127.0.0.1/list.csv"}
    name, _, query = path.partition("?")
    if name in led:
        return 302, {"Location": led[name]}, b""
    if name == "/signed.csv" and query != "sig=hunter2%2F%2Fx":
        return 403, {}, b""
    if name == "/cut.csv":
        return 200, {"Content-Length": "10000"}, CSV.encode()
    return (200, {"ETag": '"v7"'}, CSV.encode()) if name in ("/list.csv", "/signed.csv") else (404, {}, b"")


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with http_server(files) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        yield f"https://127.0.0.1:{server.server_port}"


def test_a_file_of_the_web_is_read_and_its_signature_is_nowhere(web: str, tmp_path: Path) -> None:
    signed = f"{web}/signed.csv?sig=hunter2%2F%2Fx"
    report = bs.enrich([signed, f"{web}/moved.csv"], tmp_path / "outputs")
    assert (report.rows, report.parts[0].input, report.parts[0].input_version) == (4, f"{web}/signed.csv", '"v7"')
    assert "hunter2" not in Path(str(report.manifest)).read_text("utf-8") + repr(report)
    with pytest.raises(UsageError, match="differ only behind the `\\?`") as caught:
        bs.plan([f"{web}/list.csv?id=1", f"{web}/list.csv?id=2"])
    assert "id=1" not in str(caught.value)


WEB_REFUSALS = {
    "/none.csv": "there is no such file (404)",
    "/signed.csv?sig=hunter3": "may not be read by whoever has its URL (403)",
    "/cut.csv": "cannot be reached, or was cut off",
    "/round.csv": "leads from one URL to the next without end",
    "/plain.csv": "leads to a URL without TLS",
}


def test_what_the_web_does_not_give_is_told(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look: Callable[[str], object] = lambda name: fetch(as_path(f"{web}{name}"))  # noqa: E731
    for name, said in WEB_REFUSALS.items():
        words = refused(lambda name=name: look(name))  # type: ignore[misc]
        assert said in words
        assert "hunter3" not in words
    assert "a web server has no list of its files" in refused(lambda: find_files(f"{web}/list.csv/"))
    for variable, value in (("SSL_CERT_FILE", "/nowhere.pem"), ("HTTPS_PROXY", "socks9://hunter2")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            words = refused(lambda: look("/list.csv"))
            assert "cannot be used; check " in words
            assert variable in words
            assert "hunter2" not in words
    monkeypatch.delenv("SSL_CERT_FILE")
    assert "cannot be reached" in refused(lambda: look("/list.csv"))  # its certificate is not trusted


def test_a_job_knows_a_file_of_the_web_by_its_content_and_keeps_no_signature(web: str, tmp_path: Path) -> None:
    text = '[[inputs]]\npath = "{}"\n[output]\npath = "{{name}}.{{ext}}"\n'
    job = tmp_path / "job.toml"
    job.write_text(text.format(f"{web}/list.csv"), "utf-8")
    assert [run_job(job).inputs[0].what for _ in range(2)] == ["verified", "unchanged"]
    job.write_text(text.format(f"{web}/folder/?sig=hunter2"), "utf-8")
    report = run_job(job)
    assert report.exit_code == 2
    assert "hunter2" not in repr(report.as_dict())
    two = text.format(f"{web}/list.csv?id=1").replace("[output]", f'[[inputs]]\npath = "{web}/list.csv?id=2"\n[output]')
    job.write_text(two, "utf-8")
    with pytest.raises(UsageError, match="differ only behind the `\\?`"):
        run_job(job)


def test_a_job_reads_and_writes_objects_and_knows_them_by_their_versions(s3: S3Server, tmp_path: Path) -> None:
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
    assert what() == ["verified"]
    s3.put("out/a.csv", b"somebody's")
    assert what() == ["verified"]
    assert s3.get("out/a.csv") == s3.get("latest.csv")
    assert [key for key in s3.names() if key.startswith("changes.")] != []


def test_outcomes_are_recorded_for_an_enriched_object_and_its_page_is_written(s3: S3Server, tmp_path: Path) -> None:
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
    done = CliRunner().invoke(cli, ["report", run, "-o", f"{ROOT}/page.html"])
    assert done.stdout == f"{ROOT}/page.html written\n", done.output
    assert b"<html" in s3.get("page.html")[:200]
