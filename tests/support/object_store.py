"""An S3 server on loopback, in a process of its own: deltalake waits for answers without letting
other threads of Python run."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from pyarrow import fs

from tests.support.ports import free_port

KEYS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
PATIENCE_S = 120


@contextmanager
def object_store(bucket: str) -> Iterator[dict[str, str]]:
    """A store with one empty bucket: the environment in which programs find it."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(server, address)
        made = fs.S3FileSystem(
            access_key="key",
            secret_key="secret",
            region="us-east-1",
            endpoint_override=address,
            allow_bucket_creation=True,
        )
        made.create_dir(bucket)
        yield {**KEYS, "AWS_ENDPOINT_URL": address}
    finally:
        server.kill()
        server.wait()


def _wait_for(server: subprocess.Popen[bytes], address: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            urllib.request.urlopen(address, timeout=PATIENCE_S).close()
            return
        except OSError:
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
