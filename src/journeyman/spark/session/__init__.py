"""A Spark session as the pipeline wants it, on any master; its errors in one sentence.

    nobody has started Spark    ours: local[*] unless told otherwise, with all settings below
    spark-submit started it     its master and settings stand; only what is missing is added
    a session is there          the same
    --remote, SPARK_REMOTE      a Spark Connect server: only what a session may set is added

Whoever asked for a setting gets it: --conf, then spark-submit and spark-defaults.conf, then ours.
Nothing here runs a job, and a session is never made by importing something.

The address of a master or a server is looked at before Java is started: Spark itself would try
again for minutes, and then blame Java or say nothing. A second in front of it tells whether anybody
answers.

What Spark raises becomes one of our own errors (``in_one_sentence``), instead of two hundred lines:

    a task or the planner raised a JourneymanError    that very sentence, and UsageError stays one
    a task raised anything else in Python             its last line
    the query is wrong                                Spark's first sentence, and where in the query
    Java raised something                             the innermost cause
    Java or a Python worker is gone                   what is likely, and what to do

Spark hands on what happened elsewhere only as text, so text is what is looked at. The original is
kept as the cause, so that ``--debug`` shows all of it.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol, TextIO

import pyspark
from py4j.protocol import (  # type: ignore[import-untyped]
    Py4JError,
    Py4JJavaError,
    Py4JNetworkError,
)
from pyspark.errors import AnalysisException, PySparkException, PySparkImportError
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from journeyman.errors import JourneymanError, UsageError
from journeyman.spark.session import java as session_java

__all__ = [
    "TINY_SETTINGS",
    "Bar",
    "DataFrame",
    "SparkSession",
    "active_session",
    "build_session",
    "cancel_all",
    "check_address",
    "end_session",
    "in_one_sentence",
]


DEFAULT_MASTER = "local[*]"
LEAST_DRIVER_MB, MOST_DRIVER_MB = 1024, 4096
_MB = 1024 * 1024
_LOOPBACK = "127.0.0.1"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_FEW_PARTITIONS = "8"  # for shuffles of little data; Spark would make 200
# Settings that a running session takes as well.
_SQL_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # The keys of a replay are mostly distinct by then: a second map only costs.
    "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Rows of a replay are packets of up to some MB, so a batch of 10,000 of them would be too much;
    # and what is used again and again while it is in the processor's cache is copied faster.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 * _MB),
}
# With few records, Java takes longer to compile a query than to interpret it.
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
# Places in the texts of errors.
_OURS = re.compile(r"^journeyman\.errors\.(\w+): (.+)$", re.MULTILINE)
_PYTHON = re.compile(
    r"^(?:\w+\.)*(\w*(?:Error|Exception|Interrupt|Exit)\w*)(?:: (.*))?$", re.MULTILINE
)
_JAVA = re.compile(r"(?:^: |^Caused by: |\): )(?:[\w$]+\.)+([\w$]+): (.+)$", re.MULTILINE)
_WRITTEN = re.compile(r"while writing rows to (\S+)")
_SHUFFLED = re.compile(
    r"at org\.apache\.spark\.(?:storage\.DiskBlockObjectWriter|shuffle\.|util\.collection\."
    r"|sql\.execution\.UnsafeExternal|storage\.DiskStore)"
)
_CONDITION = re.compile(r"^\[[A-Z_.\d]+\] ")
_PLACE = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")
# From a text in an error to the message about it.
_MESSAGES = {
    "Python worker exited unexpectedly": (
        "a Python worker of Spark ended unexpectedly, perhaps for lack of memory: "
        "use fewer cores (--master local[1]), or machines with more memory"
    ),
    "java.lang.OutOfMemoryError": (
        "Spark ran out of Java memory: give it more, as in --conf spark.driver.memory=8g"
    ),
    "JAVA_GATEWAY_EXITED": (
        "Java did not start: see what it says above, and check JAVA_HOME and --conf"
    ),
}


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
            spark.registerProgressHandler(Bar(sys.stderr))  # type: ignore[arg-type]
        return spark
    if _is_started_by_others():
        return _completed(_joined_session(master, asked), asked)
    settings = {**_defaults_file(), **asked}
    settings.setdefault("spark.app.name", app_name)
    master = master or settings.get("spark.master") or DEFAULT_MASTER
    java = session_java.prepare_launch(on_this_machine=_is_local(master))
    settings["spark.master"] = master
    ours = _our_settings(master, progress) | (TINY_SETTINGS if tiny else {})
    if small or tiny:
        ours.setdefault("spark.sql.shuffle.partitions", _FEW_PARTITIONS)
    for name, value in ours.items():
        settings.setdefault(name, value)
    wanted = settings.get(_JAVA_OPTIONS, "")
    if _is_local(master):
        ours_first = session_java.local_java_options(java, wanted, small=small, log_level=log_level)
        wanted = " ".join([*session_java.archive_options(java), ours_first])
    else:
        wanted = session_java.cluster_java_options(java, wanted, log_level=log_level)
    settings[_JAVA_OPTIONS] = wanted
    with _interrupted_later():
        return _with(settings).getOrCreate()


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Let Ctrl-C wait until Java has started: before, pyspark would leave it running for ever."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = threading.Event()

    def note(*_: object) -> None:
        asked.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # pyspark may have set its own
            signal.signal(signal.SIGINT, before)
    if asked.is_set():
        raise KeyboardInterrupt


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
    """Keep pyspark from writing every error of a query to stderr: it raises it as well."""
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)


def _our_settings(master: str, progress: bool) -> dict[str, str]:
    settings = {
        **_SQL_SETTINGS,
        # Otherwise Python tells Java the line of every expression, which is a third of the work.
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
            # Shuffled data goes from memory to memory here: packing it takes longer.
            "spark.shuffle.compress": "false",
        }
    return settings


def _is_remote() -> bool:
    """Return whether this process works with a Spark Connect server, by setting or by now."""
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
    """Return whether spark-submit, someone's own arguments for it, or this very process has started
    Java."""
    told = "PYSPARK_GATEWAY_PORT" in os.environ or "PYSPARK_SUBMIT_ARGS" in os.environ
    return told or active_session() is not None


def _joined_session(master: str | None, wanted_settings: Mapping[str, str]) -> SparkSession:
    if active_session() is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        session_java.prepare_launch(on_this_machine=False)
    return _with({**wanted_settings, **({"spark.master": master} if master else {})}).getOrCreate()


def _remote_session(remote: str | None, wanted_settings: Mapping[str, str]) -> SparkSession:
    if (remote or "").startswith("local"):  # a server of our own, in this very process
        session_java.prepare_launch(on_this_machine=True)
    try:
        return _with(
            {**wanted_settings, **({"spark.remote": remote} if remote else {})}
        ).getOrCreate()
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


def _completed(spark: SparkSession, wanted_settings: Mapping[str, str]) -> SparkSession:
    """Add the settings that nobody has made."""
    made = {**spark.conf.getAll, **wanted_settings}
    for name, value in _SQL_SETTINGS.items():
        if name not in made:
            spark.conf.set(name, value)
    return spark


def _defaults_file() -> dict[str, str]:
    """Return the settings of spark-defaults.conf, which those of a builder would override."""
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


def in_one_sentence(error: BaseException) -> JourneymanError | None:
    """The error to raise instead; None if this is not one of Spark's."""
    if not isinstance(error, (PySparkException, Py4JError)):
        return None
    text = str(error)
    if found := _OURS.findall(text):
        return _our_own(*found[-1])
    if isinstance(error, Py4JNetworkError):
        return JourneymanError(
            "Spark's Java process ended, perhaps for lack of memory: "
            "try --conf spark.driver.memory=8g"
        )
    if "No space left on device" in text or "[Errno 28]" in text:
        return JourneymanError(_full_disk(text))
    for mark, sentence in _MESSAGES.items():
        if mark in text:
            return JourneymanError(sentence)
    if "Traceback (most recent call last)" in text and (raised := _PYTHON.findall(text)):
        kind, said = raised[-1]
        return JourneymanError(f"a task of Spark failed: {kind}: {_sentence(said)}")
    if isinstance(error, AnalysisException):
        return UsageError(_sentence(text) + _place(text))
    if isinstance(error, Py4JJavaError) and (raised := _JAVA.findall(text)):
        coded = [each for each in raised if _CONDITION.match(each[1])]
        kind, said = coded[0] if coded else raised[-1]
        return JourneymanError(f"Spark failed: {kind}: {_sentence(said)}")
    return JourneymanError(f"Spark failed: {_sentence(text)}{_place(text)}")


def _full_disk(text: str) -> str:
    """Say whose disk is full: that of the answer, or the one for shuffled data of Spark.

    Our own tasks write nothing but the answer; Spark's writers say where they write to.
    """
    written = _WRITTEN.search(text)
    if _SHUFFLED.search(text) or not (written or "rrno 28]" in text):
        return "a disk that Spark uses is full: free some space, or set --conf spark.local.dir=DIR"
    where = f" at {written[1].rstrip('.')}" if written else ""
    return f"no space left for the output{where}: free some space there, or choose another --output"


def _our_own(kind: str, text: str) -> JourneymanError:
    return UsageError(text) if kind == UsageError.__name__ else JourneymanError(text)


def _sentence(text: str) -> str:
    """The first line, without codes that only a program needs."""
    first = text.strip().partition("\n")[0].partition(" SQLSTATE:")[0]
    return _CONDITION.sub("", first).rstrip(" .;:")


def _place(text: str) -> str:
    place = _PLACE.search(text)
    return "" if place is None else f" (line {place[1]}, position {place[2]})"


class Stage(Protocol):
    """The used part of pyspark's StageInfo."""

    num_tasks: int
    num_completed_tasks: int


class Bar:
    """The progress of a query of a Spark Connect session: one line, erased when it is done.

    A Spark that is started here draws its bar by itself (``spark.ui.showConsoleProgress``). A
    server's bar would be on the server's terminal; instead it tells us the state of its stages.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._is_drawn = False
        atexit.register(self._erase)  # an interrupted query is never done

    def __call__(
        self,
        stages: Iterable[Stage] | None,
        inflight_tasks: int,  # noqa: ARG002 - the shape of a handler
        operation_id: str | None,  # noqa: ARG002
        done: bool,
    ) -> None:
        known = list(stages or ())
        total = sum(stage.num_tasks for stage in known)
        self._erase()
        if total and not done:
            finished = sum(stage.num_completed_tasks for stage in known)
            self._terminal.write(f"{100 * finished // total} % of {total} tasks")
            self._terminal.flush()
            self._is_drawn = True

    def _erase(self) -> None:
        if self._is_drawn:
            self._terminal.write("\r\x1b[2K")
            self._terminal.flush()
            self._is_drawn = False
