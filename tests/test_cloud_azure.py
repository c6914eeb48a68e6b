"""az:// against Azurite, Microsoft's own server for tests: skipped where it is not installed (npm install -g azurite).

The variable AZURITE says where its ``azurite-blob`` is, if it is not on the path.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import httpx
import obstore
import openpyxl
import pytest
from obstore.store import AzureStore

import bansong as bs
from bansong.base import remote
from bansong.errors import InputError, OutputError
from conftest import SAMPLE
from test_cloud import CSV, once_before

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of every Azurite: no secret."""
ROOT = "az://customers"
AZURITE = os.environ.get("AZURITE") or shutil.which("azurite-blob")

pytestmark = pytest.mark.skipif(AZURITE is None, reason="Azurite is not installed: npm install -g azurite")


def make_container(endpoint: str) -> int:
    """Make the container as its owner would; obstore has no way to."""
    date, version = formatdate(usegmt=True), "2023-11-03"
    signed = f"PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{date}\nx-ms-version:{version}\n"
    signed += f"/{ACCOUNT}/{ACCOUNT}/customers\nrestype:container"
    mac = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)).decode()
    headers = {"Authorization": f"SharedKey {ACCOUNT}:{mac}", "x-ms-date": date, "x-ms-version": version}
    return httpx.put(f"{endpoint}/customers?restype=container", headers=headers, timeout=30).status_code


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent", "--skipApiVersionCheck"]
    command += ["--location", str(tmp_path_factory.mktemp("azurite"))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        url, deadline = f"http://127.0.0.1:{port}/{ACCOUNT}", time.monotonic() + 60
        try:
            while True:
                try:
                    assert make_container(url) == 201
                    break
                except httpx.TransportError:
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.2)
            yield url
        finally:
            process.kill()


@pytest.fixture
def store(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> AzureStore:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
    store = AzureStore(
        "customers", account_name=ACCOUNT, account_key=KEY, endpoint=endpoint, client_options={"allow_http": True}
    )
    obstore.delete(store, names(store))
    return store


def names(store: AzureStore) -> list[str]:
    return sorted(one["path"] for one in obstore.list(store).collect())


def get(store: AzureStore, name: str) -> bytes:
    return bytes(obstore.get(store, name).bytes())


def test_workbooks_and_folders_go_in_and_out(store: AzureStore, tmp_path: Path) -> None:
    obstore.put(store, "목록/고객 명단.xlsx", (SAMPLE / "customers.xlsx").read_bytes())
    obstore.put(store, "목록/a.csv", CSV.encode())
    report = bs.enrich([f"{ROOT}/목록/*"], f"{ROOT}/나감/")
    assert (report.rows, len(report.parts)) == (302, 2)
    assert names(store) == ["나감/a.csv", "나감/고객 명단.xlsx", "목록/a.csv", "목록/고객 명단.xlsx"]
    (tmp_path / "back.xlsx").write_bytes(get(store, "나감/고객 명단.xlsx"))
    assert openpyxl.load_workbook(tmp_path / "back.xlsx").active.max_row == 301
    version = obstore.head(store, "목록/a.csv")["e_tag"]
    assert bs.enrich(f"{ROOT}/목록/a.csv", in_place=True, backup=False).input_version == version
    assert get(store, "목록/a.csv").count(b"unknown") == 2


def test_what_somebody_else_writes_meanwhile_is_neither_overwritten_nor_read_in_two_versions(
    store: AzureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.csv").write_text(CSV, "utf-8")
    for before in (None, b"old"):
        obstore.delete(store, names(store))
        if before is not None:
            obstore.put(store, "out.csv", before)
        with (
            once_before(monkeypatch, remote, "upload_object", lambda: obstore.put(store, "out.csv", b"theirs")),
            pytest.raises(OutputError, match=r"somebody else has .* meanwhile; it was not overwritten"),
        ):
            bs.enrich(tmp_path / "in.csv", f"{ROOT}/out.csv")
        assert get(store, "out.csv") == b"theirs"
    obstore.put(store, "a.csv", CSV.encode())
    with (
        once_before(monkeypatch, remote, "download_object", lambda: obstore.put(store, "a.csv", b"other")),
        pytest.raises(InputError, match="was changed while it was being read; run again"),
    ):
        bs.enrich(f"{ROOT}/a.csv")
