"""Addresses of masters and Connect servers fail in a moment; full disks name the right one."""

from __future__ import annotations

import socket
import time

import pytest
from pyspark.errors import PySparkException

from journeyman.errors import JourneymanError, UsageError
from journeyman.spark.session import check_address, in_one_sentence


@pytest.fixture
def closed_port():
    """A port of this machine that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[4]",
        "local[*]",
        "local[*,3]",
        "local-cluster[2,1,1024]",
        "yarn",
        "k8s://https://h",
    ],
)
def test_masters_that_spark_knows_are_not_called(master):
    check_address(master, None)


@pytest.mark.parametrize(
    "master", ["nonsense", "", "local[]", "spark:/h", "http://h:7077", "mesos://h"]
)
def test_what_is_no_master_is_a_wrong_command_line(master):
    with pytest.raises(UsageError, match="not a Spark master"):
        check_address(master, None)


def test_an_address_where_nobody_listens_fails_at_once(closed_port):
    began = time.monotonic()
    with pytest.raises(JourneymanError, match=r"no Spark master at spark://.*refused"):
        check_address(f"spark://127.0.0.1:{closed_port}", None)
    with pytest.raises(JourneymanError, match=r"no Spark Connect server at sc://.*refused"):
        check_address(None, f"sc://127.0.0.1:{closed_port}/;user_id=me")
    assert time.monotonic() - began < 60


def test_one_of_several_masters_is_enough(closed_port):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_address(f"spark://127.0.0.1:{closed_port},127.0.0.1:{port}", None)
        check_address(None, f"sc://127.0.0.1:{port}")


@pytest.mark.parametrize("remote", ["127.0.0.1:15002", "sc://:x", "sc://host:99999"])
def test_what_is_no_connect_server_is_a_wrong_command_line(remote):
    with pytest.raises(UsageError):
        check_address(None, remote)


FULL = "Caused by: java.io.IOException: No space left on device"
SHUFFLING = "\n\tat org.apache.spark.storage.DiskBlockObjectWriter.flush(Some.scala:1)"
WRITING = "[TASK_WRITE_FAILED] Task failed while writing rows to file:/out.\n"
OF_SPARK = "a disk that Spark uses is full: "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("OSError: [Errno 28] Error writing bytes to file", "no space left for the output: "),
        (WRITING + FULL, "no space left for the output at file:/out: "),
        (WRITING + FULL + SHUFFLING, OF_SPARK),
        (FULL, OF_SPARK),
    ],
)
def test_a_full_disk_is_said_of_the_disk_that_is_full(text, said):
    error = in_one_sentence(PySparkException(text))
    assert error is not None
    assert str(error).startswith(said)
