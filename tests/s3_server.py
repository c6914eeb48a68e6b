"""A server that speaks S3, on a socket of its own in a process of its own, and what a test wants to know of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.parse import quote
from xml.etree import ElementTree

import httpx
import obstore
import pytest
from obstore.store import S3Store

BUCKET = "customers"
KEY, SECRET = "AKIATESTTESTTESTTEST", "secret-of-the-tests"
_SERVE = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").disabled = True
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(*server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class S3Server:
    """The server, with one empty bucket."""

    url: str

    @property
    def store(self) -> S3Store:
        """The bucket, for whoever looks at it besides the code under test."""
        return S3Store(
            BUCKET, endpoint=self.url, access_key_id=KEY, secret_access_key=SECRET, client_options={"allow_http": True}
        )

    def put(self, key: str, content: bytes) -> str:
        """Write an object as somebody else would; return its ETag."""
        return str(obstore.put(self.store, key, content)["e_tag"])

    def put_folder(self, key: str) -> None:
        """Write the empty object that a console makes for a folder: its name ends with a slash."""
        assert httpx.put(f"{self.url}/{BUCKET}/{key}", headers=_SIGNED).status_code == 200

    def get(self, key: str) -> bytes:
        return bytes(obstore.get(self.store, key).bytes())

    def names(self) -> list[str]:
        return sorted(one["path"] for one in obstore.list(self.store).collect())

    def unfinished_uploads(self) -> int:
        """Multipart uploads that were begun and neither finished nor aborted."""
        text = httpx.get(f"{self.url}/{BUCKET}?uploads", headers=_SIGNED).text
        return sum(1 for one in ElementTree.fromstring(text).iter() if one.tag.endswith("}Upload"))

    def empty(self) -> None:
        text = httpx.get(f"{self.url}/{BUCKET}?list-type=2", headers=_SIGNED).text
        for one in ElementTree.fromstring(text).iter():
            if one.tag.endswith("}Key"):
                httpx.delete(f"{self.url}/{BUCKET}/{quote(one.text or '')}", headers=_SIGNED)

    def settings(self) -> dict[str, str]:
        """The variables by which a program finds it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }


_SIGNED = {"Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/s3/aws4_request"}


@contextmanager
def serving_s3() -> Iterator[S3Server]:
    """Start the server; skip where moto is not installed."""
    if find_spec("moto") is None or find_spec("flask") is None:
        pytest.skip('no S3 server to test with: pip install "moto[s3,server]"')
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            host, port = process.stdout.readline().split()
            server = S3Server(f"http://{host}:{port}")
            assert httpx.put(f"{server.url}/{BUCKET}", headers=_SIGNED).status_code == 200
            yield server
        finally:
            process.kill()
