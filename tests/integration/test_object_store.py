"""The pipeline on logs in an object store: an S3 server on loopback, spoken to by pyarrow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

from journeyman.folds import workq as workq_fold
from journeyman.folds import ztick as ztick_fold
from journeyman.formats import workq, ztick
from journeyman.formats.framing import Codec, iter_entries
from tests.support.cli_commands import run

ROOT = Path(__file__).parents[2]
BUCKET = "logs"
KEYS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="module")
def store():
    """The address of a store with one empty bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def logs(store, tmp_path_factory):
    """Logs, in a directory and in the bucket."""
    here = tmp_path_factory.mktemp("logs")
    for log, records in (("host=a/logfile", "8000"), ("host=b/logfile", "9000")):
        made = run("generate", "ztick", here / log, "--records", records, "--quiet")
        assert made.exit_code == 0, made.output
    made = run("generate", "workq", here / "cmdlog", "--records", "500", "--quiet")
    assert made.exit_code == 0, made.output
    bucket = fs.S3FileSystem(
        access_key="key",
        secret_key="secret",
        region="us-east-1",
        endpoint_override=store,
        allow_bucket_creation=True,
    )
    bucket.create_dir(BUCKET)
    fs.copy_files(str(here), BUCKET, fs.LocalFileSystem(), bucket)
    return here


def records_in(codec: Codec[Any], path: Path) -> list[Any]:
    data = path.read_bytes()
    return [entry.record for entry in iter_entries(codec, data, codec.check_header(data))]


def test_logs_in_a_bucket_are_logs(store, logs, tmp_path):
    program = "tests.support.servers.object_store_program"
    done = subprocess.run(
        [sys.executable, "-m", program, f"s3://{BUCKET}", tmp_path],
        cwd=ROOT,
        env={**os.environ, **KEYS, "AWS_ENDPOINT_URL": store},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    states = {
        host: ztick_fold.schedule(
            ztick_fold.replay(records_in(ztick.CODEC, logs / f"host={host}" / "logfile"))
        )
        for host in "ab"
    }
    segments = sorted((logs / "cmdlog").glob("*.log"))
    work = workq_fold.replay(each for path in segments for each in records_in(workq.CODEC, path))
    jobs = sorted(states["a"].jobs)
    assert told == {
        "records": {"a": 8000, "b": 9000},
        "replayed": {
            "jobs": sum(len(state.jobs) for state in states.values()),
            "rules": sum(len(state.rules) for state in states.values()),
        },
        "jobs": jobs,
        "written": jobs,
        "payloads": sum(
            len(job.added.payload) for job in work.values() if isinstance(job, workq_fold.FoldedJob)
        ),
        "streamed": 8000,
    }
