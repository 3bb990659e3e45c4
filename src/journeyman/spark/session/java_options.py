"""How the Java of a session is told to start: collector, compiler, logging, class archive.

    -XX:+UseParallelGC              10 to 20 % less time than the default on a replay
    -XX:TieredStopAtLevel=1         small inputs: the quick compiler alone; a short command ends
                                    before the thorough one has paid for itself
    -XX:InitialRAMPercentage=5      others: a heap that need not be collected as a whole again and
    -XX:MetaspaceSize=256m          again until it has the size that a replay wants
    -XX:SharedArchiveFile=...       classes ready to use: see journeyman.spark.session.start_archive
    -Dlog4j2.configurationFile=...  Spark says nothing on stderr; its errors reach us as exceptions

What the user asks for comes last, and so it wins. Two collectors cannot be asked for, so ours is
left out when there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from journeyman.spark.session.cache import cache_path, keep_file
from journeyman.spark.session.java import Java
from journeyman.spark.session.start_archive import archive_options

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


def local_java_options(java: Java, wanted: str, *, small: bool, log_level: str) -> str:
    """The options for ``spark.driver.extraJavaOptions``; ``wanted`` are the user's own."""
    return " ".join([*_ours(java, wanted, small, log_level), wanted]).strip()


def cluster_java_options(java: Java, wanted: str, *, log_level: str) -> str:
    """The same for a driver here whose tasks run elsewhere: it is quiet too."""
    return " ".join([*_quiet(java, log_level), wanted]).strip()


def _ours(java: Java, wanted: str, small: bool, log_level: str) -> Iterator[str]:
    if not _COLLECTOR.search(wanted):
        yield "-XX:+UseParallelGC"
    if small:
        yield "-XX:TieredStopAtLevel=1"
    else:
        yield "-XX:InitialRAMPercentage=5"
        yield "-XX:MetaspaceSize=256m"
    yield from _quiet(java, log_level)
    yield from archive_options(java)


def _quiet(java: Java, log_level: str) -> Iterator[str]:
    if java.major >= 24:
        # Spark's own libraries load native code, which newer Javas remark upon.
        yield "--enable-native-access=ALL-UNNAMED"
    logging = cache_path(f"log4j2-{log_level}.properties")
    if logging is not None:
        keep_file(logging, _LOGGING.format(level=log_level))
        yield f"-Dlog4j2.configurationFile={logging}"
