"""A Spark session as the pipeline wants it, on any master.

    nobody has started Spark    ours: local[*] unless told otherwise, with all settings below
    spark-submit started it     its master and settings stand; only what is missing is added
    a session is there          the same
    --remote, SPARK_REMOTE      a Spark Connect server: only what a session may set is added

Whoever asked for a setting gets it: --conf, then spark-submit and spark-defaults.conf, then ours.
Nothing here runs a job, and a session is never made by importing something.

The address of a master or a server is looked at before Java is started: Spark itself would try
again for minutes, and then blame Java or say nothing. A second in front of it tells whether anybody
answers.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, PySparkImportError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from journeyman.errors import JourneymanError, UsageError
from journeyman.spark.session.java import (
    archive_options,
    cluster_java_options,
    local_java_options,
    prepare_launch,
)

DEFAULT_MASTER = "local[*]"
LEAST_DRIVER_MB, MOST_DRIVER_MB = 1024, 4096
_MB = 1024 * 1024
_LOOPBACK = "127.0.0.1"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_FEW_PARTITIONS = "8"  # of a shuffle of little; on a cluster Spark would make 200

# What a running session may be told too.
_SQL_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # The keys of a replay are mostly distinct by then: a second map only costs.
    "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Rows of a replay are packets of up to some MB, so a batch of 10,000 of them would be too much;
    # and what is used again and again while it is in the processor's cache is copied faster.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 * _MB),
}
# Of a few records Java takes longer to compile a query than to interpret it.
TINY_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

PATIENCE_SECONDS: Final = 5.0
_CONNECT_PORT: Final = 15002
_MASTER_PORT: Final = 7077
_NUMBER: Final = r"(?:\d+|\*)"
_MASTERS: Final = re.compile(
    rf"local|local\[{_NUMBER}(?:,\d+)?\]|local-cluster\[\d+,\s*\d+,\s*\d+\]"
    r"|spark://\S+|yarn|k8s://\S+"
)


def build_session(
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    app_name: str = "journeyman",
    *,
    remote: str | None = None,
    small: bool = False,
    tiny: bool = False,
    progress: bool = False,
    log_level: str = "fatal",
) -> SparkSession:
    """The session to work with.

    ``progress`` shows how far queries are, on stderr. ``small`` says that little is to be read, so
    that a quick start is worth more than speed later, and ``tiny`` that it is next to nothing; they
    matter only if Spark is started here, and so does ``log_level``.
    """
    asked = dict(conf or {})
    check_address(master or asked.get("spark.master"), remote or os.environ.get("SPARK_REMOTE"))
    if log_level == "fatal":
        _quiet_pyspark()
    if remote or _is_remote():
        spark = _completed(_remote_session(remote, asked), asked)
        if progress:
            from journeyman.spark.session.progress import draw_progress

            draw_progress(spark, sys.stderr)
        return spark
    if _is_started_by_others():
        return _completed(_joined_session(master, asked), asked)
    settings = {**_defaults_file(), **asked}
    settings.setdefault("spark.app.name", app_name)
    master = master or settings.get("spark.master") or DEFAULT_MASTER
    java = prepare_launch(on_this_machine=_is_local(master))
    settings["spark.master"] = master
    ours = _our_settings(master, progress) | (TINY_SETTINGS if tiny else {})
    if small or tiny:
        ours.setdefault("spark.sql.shuffle.partitions", _FEW_PARTITIONS)
    for name, value in ours.items():
        settings.setdefault(name, value)
    wanted = settings.get(_JAVA_OPTIONS, "")
    if _is_local(master):
        ours_first = local_java_options(java, wanted, small=small, log_level=log_level)
        wanted = " ".join([*archive_options(java), ours_first])
    else:
        wanted = cluster_java_options(java, wanted, log_level=log_level)
    settings[_JAVA_OPTIONS] = wanted
    return _with(settings).getOrCreate()


def active_session() -> SparkSession | None:
    """The session that this process has already, if any."""
    return SparkSession.getActiveSession()


def end_session(spark: SparkSession) -> None:
    """Let go of a session that was built here, as the last thing a program does.

    A Spark on this machine ends with the program, by itself and without being waited for. Any other
    is stopped.
    """
    is_ours = not _is_remote() and "PYSPARK_GATEWAY_PORT" not in os.environ
    if not (is_ours and _is_local(spark.conf.get("spark.master", "") or "")):
        spark.stop()


def cancel_all(spark: SparkSession) -> None:
    """Cancel what runs in this session; any thread may. That Spark has gone is not an error."""
    with suppress(PySparkException, Py4JError, ConnectionError):
        spark.interruptAll()


def _quiet_pyspark() -> None:
    """pyspark writes every error of a query to stderr as well as raising it: once is enough."""
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)


def _our_settings(master: str, progress: bool) -> dict[str, str]:
    settings = {
        **_SQL_SETTINGS,
        # Or Python tells Java at every expression which line of it made that, a third of the work.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(progress).lower(),
        "spark.executor.extraJavaOptions": "-XX:+UseParallelGC",
    }
    if _is_local(master):
        settings |= {
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.driver.memory": f"{_driver_mb()}m",
            "spark.sql.shuffle.partitions": str(_cores(master)),
            "spark.default.parallelism": str(_cores(master)),
            # What is shuffled goes from memory to memory here: packing it takes longer.
            "spark.shuffle.compress": "false",
        }
    return settings


def _is_remote() -> bool:
    """Whether this process works with a Spark Connect server, by setting or by now."""
    return bool(os.environ.get("SPARK_REMOTE")) or "SPARK_CONNECT_MODE_ENABLED" in os.environ


def _is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _cores(master: str) -> int:
    number = master.removeprefix("local").strip("[]").partition(",")[0]
    if number.isdecimal():
        return max(1, int(number))
    return len(os.sched_getaffinity(0)) if number == "*" else 1


def _driver_mb() -> int:
    """A quarter of the memory: the Python workers need theirs, and so do others."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MB
    return max(LEAST_DRIVER_MB, min(MOST_DRIVER_MB, total // 4))


def _is_started_by_others() -> bool:
    """By spark-submit, by someone's own arguments for it, or by this very process."""
    told = "PYSPARK_GATEWAY_PORT" in os.environ or "PYSPARK_SUBMIT_ARGS" in os.environ
    return told or active_session() is not None


def _joined_session(master: str | None, asked: Mapping[str, str]) -> SparkSession:
    if active_session() is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        prepare_launch(on_this_machine=False)
    return _with({**asked, **({"spark.master": master} if master else {})}).getOrCreate()


def _remote_session(remote: str | None, asked: Mapping[str, str]) -> SparkSession:
    if (remote or "").startswith("local"):  # a server of our own, in this very process
        prepare_launch(on_this_machine=True)
    try:
        return _with({**asked, **({"spark.remote": remote} if remote else {})}).getOrCreate()
    except (ImportError, PySparkImportError) as error:
        raise UsageError(
            f"a Spark Connect server needs more packages ({error}): "
            "run `pip install 'pyspark[connect]'`"
        ) from error


def _with(settings: Mapping[str, str]) -> SparkSession.Builder:
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


def _completed(spark: SparkSession, asked: Mapping[str, str]) -> SparkSession:
    """Add the settings that nobody has made."""
    made = {**spark.conf.getAll, **asked}
    for name, value in _SQL_SETTINGS.items():
        if name not in made:
            spark.conf.set(name, value)
    return spark


def _defaults_file() -> dict[str, str]:
    """What spark-defaults.conf says: it gives way to what is set on a builder, so we look first."""
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    path = Path(os.environ.get("SPARK_CONF_DIR") or f"{home}/conf") / "spark-defaults.conf"
    if not path.exists():
        return {}
    # As in a properties file of Java: the name ends at a blank, `=` or `:`.
    line = re.compile(r"^[ \t]*([^#\s=:]+)(?:[ \t]*[=:][ \t]*|[ \t]+)(.*?)[ \t]*$", re.MULTILINE)
    return dict(line.findall(path.read_text()))


def check_address(master: str | None, remote: str | None) -> None:
    """Raises UsageError for what is no address, JourneymanError where nobody answers."""
    if remote is not None and not remote.startswith("local"):
        _check_remote(remote)
    elif master is not None and remote is None:
        _check_master(master)


def _check_remote(remote: str) -> None:
    if not remote.startswith("sc://"):
        raise UsageError(f"not a Spark Connect server: {remote!r} (expected sc://HOST:PORT)")
    where = re.split("[/;]", remote.removeprefix("sc://"), maxsplit=1)[0]
    _check_answer(f"no Spark Connect server at sc://{where}", where, _CONNECT_PORT)


def _check_master(master: str) -> None:
    if _MASTERS.fullmatch(master) is None:
        raise UsageError(
            f"not a Spark master: {master!r} (expected local[*], spark://HOST:PORT, yarn or k8s://URL)"
        )
    if master.startswith("spark://"):
        _check_answer(f"no Spark master at {master}", master.removeprefix("spark://"), _MASTER_PORT)


def _check_answer(what: str, where: str, default_port: int) -> None:
    """One of the addresses has to take a connection."""
    reasons = []
    for host, port in _hosts(where, default_port):
        try:
            with closing(socket.create_connection((host, port), PATIENCE_SECONDS)):
                return
        except OSError as error:
            reasons.append(error.strerror or str(error))
    raise JourneymanError(
        f"{what}: {reasons[-1].lower()}; start it, or check the address and the firewall"
    )


def _hosts(where: str, default_port: int) -> Iterator[tuple[str, int]]:
    for each in where.split(","):
        host, colon, port = each.rpartition(":")
        if not colon or port.endswith("]"):
            host, port = each, str(default_port)
        if not host or not port.isdecimal() or int(port) > 0xFFFF:
            raise UsageError(f"not an address: {each!r} (expected HOST:PORT)")
        yield host.strip("[]"), int(port)
