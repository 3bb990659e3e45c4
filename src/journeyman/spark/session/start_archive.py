"""An archive of the classes that Spark loads when it starts, so that it starts in half the time.

    first command        starts as Spark starts, and leaves a builder behind when it is done
    builder              a small session that loads what commands load; Java writes the archive as
                         it ends, then it gets its name; by hand:
                         python -m journeyman.spark.session.start_archive
    every later command  Java maps the archive into memory instead of reading 15,000 classes

Java calls this class data sharing. An archive fits one Java and one set of jars, and its name is a
digest of both; Java checks that again, and goes on without an archive that does not fit. It takes
about 150 MB in the cache directory (cache.py). JOURNEYMAN_START_ARCHIVE=off does without it.
An archive that was not used for a month is removed by the next builder.
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
from journeyman.spark.session.cache import cache_path
from journeyman.spark.session.java import Java
from journeyman.spark.session.launch import prepare_launch, spark_home

SWITCH = "JOURNEYMAN_START_ARCHIVE"
UNUSED_S = 30 * 86400
RETRY_S = 86400  # after a builder that failed
_BUILD_TIMEOUT_S = 600
_LAZIEST = 19  # the niceness of a builder that nobody waits for


def archive_options(java: Java) -> list[str]:
    """What tells this Java to use its archive; nothing if there is none yet."""
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


def build_archive_soon(java: Java) -> None:
    """Leave a builder behind, unless the archive is there or a builder failed lately."""
    path = archive_path(java)
    if path is None or path.exists() or _failed_lately(path):
        return
    subprocess.Popen(
        [sys.executable, "-m", __name__, "--lazily"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def build_archive(java: Java) -> bool:
    """Build the archive, if it is not there. False if that cannot be done."""
    path = archive_path(java)
    if path is None:
        return False
    with _alone(path) as is_alone:
        if is_alone and not path.exists():
            _failure(path).touch()
            _remove_unused(path.parent)
            _build(java, path)
    return path.exists()


def _build(java: Java, path: Path) -> None:
    unproved = path.with_suffix(f".{os.getpid()}")
    try:
        if _train(java, unproved, path) and _fits(unproved):
            os.replace(unproved, path)
            _failure(path).unlink(missing_ok=True)
    finally:
        unproved.unlink(missing_ok=True)


def _train(java: Java, unproved: Path, path: Path) -> bool:
    """Run the session that Java remembers. The pipe to it ends when its Java has ended too."""
    options = [*_base_archive(java, path), f"-XX:ArchiveClassesAtExit={unproved}"]
    done = subprocess.run(
        [sys.executable, "-m", "journeyman.spark.session.start_training", *options],
        capture_output=True,
        check=False,
        timeout=_BUILD_TIMEOUT_S,
        env={**os.environ, SWITCH: "off"},
    )
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
def _alone(path: Path) -> Iterator[bool]:
    """Whether no other builder works on this archive. The lock ends with its process."""
    with path.with_suffix(".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _failure(path: Path) -> Path:
    """A mark that is there from the beginning of a build until it succeeds."""
    return path.with_suffix(".failed")


def _failed_lately(path: Path) -> bool:
    try:
        return _now_s() - _failure(path).stat().st_mtime < RETRY_S
    except FileNotFoundError:
        return False


def _now_s() -> float:
    return SystemClock().now_ns() / 1e9


def _remove_unused(directory: Path) -> None:
    for path in directory.iterdir():
        if _now_s() - path.stat().st_mtime > UNUSED_S:
            path.unlink(missing_ok=True)


def main() -> int:
    """Build the archive now; ``--lazily`` with what time others leave over."""
    if "--lazily" in sys.argv[1:]:
        os.nice(_LAZIEST)
    return 0 if build_archive(prepare_launch(on_this_machine=True)) else 1


if __name__ == "__main__":
    sys.exit(main())
