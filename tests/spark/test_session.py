"""The session: whose settings win, what is kept quiet, and how failures are told."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import Row

from journeyman.cli.pipeline.shared import SessionOptions, pipeline_session
from journeyman.errors import JourneymanError, LogError, UsageError
from journeyman.spark import read
from journeyman.spark import session as sessions
from journeyman.spark.data_sources import SERVER_FORMAT, register_formats
from journeyman.spark.session import Bar, in_one_sentence
from journeyman.spark.session import java as archives
from journeyman.spark.session.java import (
    Java,
    find_java,
    local_java_options,
    prepare_launch,
    spark_home,
)
from tests.support.cli_commands import run

JAVA = Java(Path("/java/bin/java"), "17.0.1")


# -- settings ------------------------------------------------------------------------------------


def test_a_command_works_with_the_session_that_is_there_and_leaves_it(spark):
    with pipeline_session(SessionOptions(conf={"spark.sql.shuffle.partitions": "2"})) as ours:
        assert ours.range(3).count() == 3

    assert spark.range(3).count() == 3


def test_the_session_has_the_settings_of_the_pipeline(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.master") == "local[2]"
    assert spark.conf.get("spark.default.parallelism") == "2"
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"


def test_settings_made_by_others_stand_and_missing_ones_are_added(spark):
    asked = {"spark.sql.session.timeZone": "Europe/Paris"}
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        joined = sessions.build_session(conf=asked)
        assert joined.conf.get("spark.sql.session.timeZone") == "Europe/Paris"
        again = sessions.build_session()
        assert again.conf.get("spark.sql.session.timeZone") == "Europe/Paris"
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


class Started(Exception):
    """Raised in place of starting Spark."""


@pytest.fixture
def starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a new Spark would be told; no Spark is started, no session is there."""
    told: dict[str, str] = {}

    def start(settings: dict[str, str]) -> SparkSession.Builder:
        told.update(settings)
        raise Started

    monkeypatch.setattr(sessions, "_with", start)
    monkeypatch.setattr(sessions, "active_session", lambda: None)
    monkeypatch.setattr(sessions, "check_address", lambda master, remote: None)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    # What is set meanwhile is forgotten afterwards: the session of this lane has set them too.
    for name in ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return told


def test_without_a_word_spark_runs_on_all_cores_of_this_machine(starting):
    with pytest.raises(Started):
        sessions.build_session()

    assert starting["spark.master"] == "local[*]"
    assert starting["spark.sql.shuffle.partitions"] == str(len(os.sched_getaffinity(0)))
    assert "-XX:+UseParallelGC" in starting["spark.driver.extraJavaOptions"]
    assert "log4j2.configurationFile" in starting["spark.driver.extraJavaOptions"]


def test_what_the_user_sets_wins(starting, tmp_path):
    (tmp_path / "spark-defaults.conf").write_text(
        "# comment\nspark.driver.memory  6g\nspark.sql.session.timeZone=Asia/Tokyo\n"
        "spark.driver.extraJavaOptions -Dwho=defaults -Da=b\nspark.ui.enabled: true\n"
    )

    with pytest.raises(Started):
        sessions.build_session("local[7]", {"spark.ui.enabled": "false", "spark.app.name": "mine"})

    assert starting["spark.driver.memory"] == "6g"
    assert starting["spark.sql.session.timeZone"] == "Asia/Tokyo"
    assert starting["spark.ui.enabled"] == "false"
    assert starting["spark.app.name"] == "mine"
    assert starting["spark.master"] == "local[7]"
    assert starting["spark.default.parallelism"] == "7"
    assert starting["spark.driver.extraJavaOptions"].endswith("-Dwho=defaults -Da=b")


def test_a_cluster_gets_no_setting_of_a_single_machine(starting):
    with pytest.raises(Started):
        sessions.build_session("spark://host:7077")

    assert starting["spark.master"] == "spark://host:7077"
    assert "spark.driver.host" not in starting
    assert "spark.sql.shuffle.partitions" not in starting
    assert "spark.shuffle.compress" not in starting
    # The driver is here: it is as quiet as any other, and gets nothing else.
    options = starting["spark.driver.extraJavaOptions"]
    assert "-Dlog4j2.configurationFile=" in options
    assert "-XX:" not in options


def test_little_is_not_shuffled_into_many_parts_on_a_cluster(starting):
    with pytest.raises(Started):
        sessions.build_session("spark://host:7077", small=True)
    assert starting["spark.sql.shuffle.partitions"] == "8"

    asked = {"spark.sql.shuffle.partitions": "3"}
    with pytest.raises(Started):
        sessions.build_session("spark://host:7077", asked, small=True)
    assert starting["spark.sql.shuffle.partitions"] == "3"


def test_spark_submit_keeps_its_master_and_settings(starting, monkeypatch):
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")

    with pytest.raises(Started):
        sessions.build_session(conf={"a": "b"})

    assert starting == {"a": "b"}


def test_a_connect_server_is_told_only_what_was_asked(starting):
    with pytest.raises(Started):
        sessions.build_session(conf={"a": "b"}, remote="sc://host:15002")

    assert starting == {"a": "b", "spark.remote": "sc://host:15002"}


@pytest.mark.usefixtures("spark")  # an archive is looked for where Spark is
@pytest.mark.parametrize("collector", ["-XX:+UseG1GC", "-Dx=y -XX:+UseZGC"])
def test_two_collectors_are_never_asked_for(collector):
    options = local_java_options(JAVA, collector, small=False, log_level="fatal")

    assert "ParallelGC" not in options
    assert options.endswith(collector)


@pytest.mark.usefixtures("spark")
def test_only_a_small_input_gives_up_the_thorough_compiler():
    small = local_java_options(JAVA, "", small=True, log_level="fatal")
    large = local_java_options(JAVA, "", small=False, log_level="fatal")

    assert "-XX:TieredStopAtLevel=1" in small.split()
    assert "-XX:TieredStopAtLevel=1" not in large.split()
    assert "-XX:MetaspaceSize=256m" in large.split()


def test_only_a_tiny_input_has_its_queries_interpreted(starting):
    with pytest.raises(Started):
        sessions.build_session("local[2]", small=True)
    assert not sessions.TINY_SETTINGS.keys() & starting.keys()

    with pytest.raises(Started):
        sessions.build_session("local[2]", {"spark.sql.codegen.wholeStage": "true"}, tiny=True)
    assert starting["spark.sql.codegen.wholeStage"] == "true"
    assert starting["spark.sql.codegen.factoryMode"] == "NO_CODEGEN"


# -- formats -------------------------------------------------------------------------------------


def test_formats_are_made_known_once_and_only_those_that_are_asked_for():
    asked: list[str] = []
    register = SimpleNamespace(register=lambda source: asked.append(source.name()))
    session: Any = _Session()
    session.dataSource = register

    register_formats(session, "workq")
    assert asked == ["workq"]
    register_formats(session, "workq", SERVER_FORMAT)
    assert asked == ["workq", "journeyman"]
    register_formats(session)
    assert sorted(asked) == ["journeyman", "kestrel", "ledger", "workq", "ztick"]


class _Session:
    """What can be known by a weak reference."""


# -- the start archive ---------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(archives.SWITCH, raising=False)
    return tmp_path


def test_the_archive_is_used_as_soon_as_it_is_there(cache):
    path = archives.archive_path(JAVA)
    assert path is not None
    assert archives.archive_options(JAVA) == []

    path.touch()

    assert f"-XX:SharedArchiveFile={path}" in archives.archive_options(JAVA)


def test_prepare_builds_the_archive_once_and_says_where(cache, monkeypatch):
    built: list[Path] = []

    def train(_java: Java, unproved: Path, _path: Path) -> bool:
        unproved.write_bytes(bytes(2_500_000))
        built.append(unproved)
        return True

    monkeypatch.setattr(archives, "_train", train)
    monkeypatch.setattr(archives, "_fits", lambda _: True)

    first, second = run("pipeline", "prepare"), run("pipeline", "prepare")

    path = archives.archive_path(find_java())
    assert (first.exit_code, first.stdout) == (0, f"{path}: 2 MB, built\n")
    assert (second.exit_code, second.stdout) == (0, f"{path}: 2 MB, there already\n")
    assert len(built) == 1


def test_prepare_says_so_when_there_can_be_no_archive(cache, monkeypatch):
    monkeypatch.setattr(archives, "_train", lambda *_: False)
    failed = run("pipeline", "prepare")
    assert failed.exit_code == 1
    assert "commands work without it, only slower" in failed.stderr

    monkeypatch.setenv(archives.SWITCH, "off")
    refused = run("pipeline", "prepare")
    assert refused.exit_code == 2
    assert archives.SWITCH in refused.stderr


def test_an_archive_gets_its_name_only_when_java_takes_it(cache, monkeypatch):
    def train(_java: Java, unproved: Path, _path: Path) -> bool:
        unproved.write_bytes(b"half an archive")
        return True

    monkeypatch.setattr(archives, "_train", train)
    monkeypatch.setattr(archives, "_fits", lambda _: False)
    assert archives.build_archive(JAVA) is None
    assert not list(cache.rglob("*.jsa"))

    monkeypatch.setattr(archives, "_fits", lambda _: True)
    assert archives.build_archive(JAVA) == archives.archive_path(JAVA)
    assert [path.read_bytes() for path in cache.rglob("*.jsa")] == [b"half an archive"]


def test_another_java_has_another_archive_and_off_means_none(cache, monkeypatch):
    other = Java(JAVA.executable, "21.0.8")
    assert archives.archive_path(JAVA) != archives.archive_path(other)

    monkeypatch.setenv(archives.SWITCH, "off")
    assert archives.archive_path(JAVA) is None


def test_archives_that_nobody_used_for_a_month_go(cache, monkeypatch):
    monkeypatch.setattr(archives, "_train", lambda *_: False)
    old, new = cache / "journeyman/start/old.jsa", cache / "journeyman/start/new.jsa"
    old.parent.mkdir(parents=True)
    old.touch()
    new.touch()
    os.utime(old, (0, 0))

    archives.build_archive(JAVA)

    assert new.exists()
    assert not old.exists()


def test_spark_on_this_machine_is_given_no_zipped_copy_of_pyspark(spark):
    prepare_launch(on_this_machine=True)

    assert (spark_home() / "jars").is_dir()
    assert (spark_home() / "bin" / "spark-submit").exists()
    assert not (spark_home() / "python").exists()
    assert find_java().major >= 17


def test_progress_of_a_connect_server_is_one_line_that_goes_away():
    terminal = io.StringIO()
    bar = Bar(terminal)
    stages = [SimpleNamespace(num_tasks=3, num_completed_tasks=1)]

    bar(None, 0, "id", done=False)
    bar(stages, 2, "id", done=False)
    bar(stages, 2, "id", done=False)
    drawn = terminal.getvalue()
    bar(stages, 0, "id", done=True)

    assert "33 % of 3 tasks" in drawn
    assert drawn.count("\n") == 0
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is erased


# -- failures ------------------------------------------------------------------------------------


def failing_with(error: Exception):
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise error

    return fail


def told(spark: SparkSession, statement: str) -> JourneymanError:
    with pytest.raises(PySparkException) as raised:
        spark.sql(statement).collect()
    error = in_one_sentence(raised.value)
    assert error is not None
    assert "\n" not in str(error)
    return error


def test_what_we_raise_in_a_task_is_told_in_its_own_words(spark):
    frame = spark.range(1).mapInArrow(failing_with(LogError("/a/b", "the file shrank")), "id long")

    with pytest.raises(PySparkException) as raised:
        frame.collect()

    assert str(in_one_sentence(raised.value)) == "/a/b: the file shrank"


def test_what_python_raises_in_a_task_is_its_last_line(spark):
    frame = spark.range(1).mapInArrow(failing_with(ZeroDivisionError("by nothing")), "id long")

    with pytest.raises(PySparkException) as raised:
        frame.collect()

    error = in_one_sentence(raised.value)
    assert str(error) == "a task of Spark failed: ZeroDivisionError: by nothing"


def test_a_source_that_is_asked_wrongly_is_wrong_use(spark, tmp_path):
    with pytest.raises((PySparkException, UsageError)) as raised:
        spark.read.format("ztick").option("moed", "x").load(str(tmp_path)).collect()

    error = in_one_sentence(raised.value)
    assert isinstance(error, UsageError)
    assert "moed" in str(error)
    assert "\n" not in str(error)


def test_a_wrong_query_says_what_and_where(spark):
    missing = told(spark, "SELECT 1\nFROM nowhere")
    garbled = told(spark, "SELEC 1")
    impossible = told(spark, "SELECT 1 / 0")

    assert isinstance(missing, UsageError)
    assert str(missing).startswith("The table or view `nowhere` cannot be found.")
    assert str(missing).endswith("(line 2, position 5)")
    assert str(garbled) == "Syntax error at or near 'SELEC' (line 1, position 0)"
    assert "Division by zero" in str(impossible)
    assert not isinstance(impossible, UsageError)


def test_what_is_not_of_spark_is_left_alone():
    assert in_one_sentence(ValueError("x")) is None
    assert in_one_sentence(UsageError("x")) is None


def test_a_log_reads_in_this_session(spark, tmp_path):
    from tests.support.cli_commands import job, write_ztick

    log = write_ztick(tmp_path / "logfile", job("a"), job("b"), job("a"))

    rows = read(spark, "ztick", str(log)).groupBy("key").count().collect()

    assert sorted(rows) == [Row(key="a", count=2), Row(key="b", count=1)]
