"""A Spark master and its workers on loopback, each in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from journeyman.spark.session.java import prepare_launch, spark_home
from tests.support.ports import free_port

HOST = "127.0.0.1"
_QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SETTINGS = {"spark.executor.memory": "1g", "spark.driver.host": HOST}
# For a few records Java is told to compile little, and Spark to plan once and to shuffle little.
FEW_RECORDS = {
    "spark.driver.extraJavaOptions": _QUICK_START,
    "spark.executor.extraJavaOptions": _QUICK_START,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
}
_DEPLOY = "org.apache.spark.deploy"
_PATIENCE_S = 120


@contextmanager
def standalone_cluster(
    directory: Path, *, workers: int = 2, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The address of a master with so many workers of one core each.

    ``environment`` is added to that of the workers, from which executors have theirs.
    """
    prepare_launch(on_this_machine=False)
    port = free_port()
    address = f"spark://{HOST}:{port}"
    with ExitStack() as stack:
        stack.enter_context(_running({}, f"{_DEPLOY}.master.Master", "--port", str(port)))
        _wait_for(port)
        for number in range(workers):
            where = ["-c", "1", "-m", "1500m", "-d", str(directory / f"worker-{number}"), address]
            stack.enter_context(_running(environment or {}, f"{_DEPLOY}.worker.Worker", *where))
        yield address


@contextmanager
def _running(environment: Mapping[str, str], program: str, *words: str) -> Iterator[None]:
    command = [f"{spark_home()}/bin/spark-class", program, "--host", HOST, "--webui-port", "0"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        [*command, *words],
        stdout=quiet,
        stderr=quiet,
        env={**os.environ, **environment, "SPARK_LOCAL_IP": HOST},
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with closing(socket.create_connection((HOST, port), _PATIENCE_S)):
                return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
