"""An archive of the classes that Spark loads when it starts, so that it starts in half the time.

    journeyman pipeline prepare   runs a small session that loads what commands load; Java writes
                                  the archive as it ends; once Java takes it, it gets its name
    every later command           Java maps the archive into memory instead of reading 15,000
                                  classes; without an archive a command is only slower

Java calls this class data sharing. An archive fits one Java and one set of jars, and its name is a
digest of both; Java checks that again, and goes on without an archive that does not fit. It takes
about 190 MB in the cache directory. JOURNEYMAN_START_ARCHIVE=off does without it. An archive that
was not used for a month is removed when the next one is built.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from journeyman.clock import SystemClock
from journeyman.spark.session.java import Java, cache_path, spark_home

SWITCH = "JOURNEYMAN_START_ARCHIVE"
UNUSED_S = 30 * 86400
_BUILD_TIMEOUT_S = 600


def archive_options(java: Java) -> list[str]:
    """What tells this Java to use its archive; nothing if there is none."""
    path = archive_path(java)
    if path is None or not path.exists():
        return []
    os.utime(path)  # used today
    # Java would remark on stdout that an archive does not fit; it is no error.
    return [f"-XX:SharedArchiveFile={path}", "-Xlog:disable", "-Xlog:all=error:stderr"]


def archive_path(java: Java) -> Path | None:
    """Where the archive for this Java and this Spark is, or would be. None: do without."""
    if os.environ.get(SWITCH, "").lower() in ("0", "off", "no", "false"):
        return None
    return cache_path("start", f"{_digest(java)}.jsa")


def build_archive(java: Java) -> Path | None:
    """The archive, built if it is not there. None if it cannot be built, or is switched off."""
    path = archive_path(java)
    if path is None:
        return None
    with _build_alone(path):
        if not path.exists():
            _remove_unused(path.parent)
            _build(java, path)
    return path if path.exists() else None


def _build(java: Java, path: Path) -> None:
    unproved = path.with_suffix(f".{os.getpid()}")
    try:
        if _train(java, unproved, path) and _fits(unproved):
            os.replace(unproved, path)
    finally:
        unproved.unlink(missing_ok=True)


def _train(java: Java, unproved: Path, path: Path) -> bool:
    """Run the session that Java remembers. The pipe to it ends when its Java has ended too.

    False if that fails, or takes far too long.
    """
    options = [*_base_archive(java, path), f"-XX:ArchiveClassesAtExit={unproved}"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "journeyman.spark.session.start_training", *options],
            capture_output=True,
            check=False,
            timeout=_BUILD_TIMEOUT_S,
            env={**os.environ, SWITCH: "off"},
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and unproved.exists()


def _base_archive(java: Java, path: Path) -> list[str]:
    """A Java in a package comes without the archive of its own classes that ours builds upon."""
    if (java.executable.parent.parent / "lib" / "server" / "classes.jsa").exists():
        return []
    base = path.with_suffix(".base.jsa")
    if not base.exists():
        unproved = base.with_suffix(f".{os.getpid()}")
        dump = [str(java.executable), "-Xshare:dump", f"-XX:SharedArchiveFile={unproved}"]
        subprocess.run(dump, capture_output=True, check=True, timeout=_BUILD_TIMEOUT_S)
        os.replace(unproved, base)
    return [f"-XX:SharedArchiveFile={base}"]


def _fits(unproved: Path) -> bool:
    """Whether Spark's Java takes the archive: with -Xshare:on it would not start otherwise."""
    options = f"-Xshare:on -XX:SharedArchiveFile={unproved}"
    proof = [f"{spark_home()}/bin/spark-submit", "--driver-java-options", options, "--version"]
    return subprocess.run(proof, capture_output=True, check=False).returncode == 0


def _digest(java: Java) -> str:
    """Of all that an archive depends on: what it is made of, the Java, and the class path."""
    has_settings = (spark_home() / "conf").is_dir()
    beginning = f"{java.executable}\n{java.version}\n{spark_home()}\n{has_settings}\n"
    digest = hashlib.sha256(beginning.encode())
    digest.update(Path(__file__).with_name("start_training.py").read_bytes())
    with os.scandir(spark_home() / "jars") as jars:
        for jar in sorted(jars, key=lambda each: each.name):
            status = jar.stat()
            digest.update(f"{jar.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


@contextmanager
def _build_alone(path: Path) -> Iterator[None]:
    """Wait until no other process builds this archive. The lock ends with its process."""
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_unused(directory: Path) -> None:
    now_s = SystemClock().now_ns() / 1e9
    for path in directory.iterdir():
        if now_s - path.stat().st_mtime > UNUSED_S:
            path.unlink(missing_ok=True)
