r"""What Spark raises, as one of our own errors: one sentence instead of two hundred lines.

    a task or the planner raised a JourneymanError    that very sentence, and UsageError stays one
    a task raised anything else in Python             its last line
    the query is wrong                                Spark's first sentence, and where in the query
    Java raised something                             the innermost cause
    Java or a Python worker is gone                   what is likely, and what to do

Spark hands on what happened elsewhere only as text, so text is what is looked at here. The original
is kept as the cause, so that ``--debug`` shows all of it.
"""

from __future__ import annotations

import re

from py4j.protocol import (  # type: ignore[import-untyped]
    Py4JError,
    Py4JJavaError,
    Py4JNetworkError,
)
from pyspark.errors import AnalysisException, PySparkException

from journeyman.errors import JourneymanError, UsageError

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

# What is found in the text -> what is said.
_KNOWN = {
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


def in_one_sentence(error: BaseException) -> JourneymanError | None:
    """The error to raise instead; None if this is not one of Spark's."""
    if not isinstance(error, (PySparkException, Py4JError)):
        return None
    text = str(error)
    if found := _OURS.findall(text):
        return _our_own(*found[-1])
    if isinstance(error, Py4JNetworkError):
        return JourneymanError(
            "the Java that runs Spark is gone, perhaps for lack of memory: "
            "try --conf spark.driver.memory=8g"
        )
    if "No space left on device" in text or "[Errno 28]" in text:
        return JourneymanError(_full_disk(text))
    for mark, sentence in _KNOWN.items():
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
    """Whose disk is full: that of the answer, or the one that Spark keeps what it shuffles on.

    Our own tasks write nothing but the answer; Spark's writers say where they write to.
    """
    written = _WRITTEN.search(text)
    if _SHUFFLED.search(text) or not (written or "rrno 28]" in text):
        return (
            "no space left on a disk that Spark uses: make room, or set --conf spark.local.dir=DIR"
        )
    where = f" at {written[1].rstrip('.')}" if written else ""
    return f"no space left for the output{where}: make room there, or choose another --output"


def _our_own(kind: str, said: str) -> JourneymanError:
    return UsageError(said) if kind == UsageError.__name__ else JourneymanError(said)


def _sentence(text: str) -> str:
    """The first line, without codes that only a program needs."""
    first = text.strip().partition("\n")[0].partition(" SQLSTATE:")[0]
    return _CONDITION.sub("", first).rstrip(" .;:")


def _place(text: str) -> str:
    place = _PLACE.search(text)
    return "" if place is None else f" (line {place[1]}, position {place[2]})"
