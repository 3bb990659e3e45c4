r"""The contract of every runner: a request goes in, a result comes out, nothing else happens.

    RunRequest(job_id, execution_ns, runner)  --Runner.run-->  RunResult(success, reason, output)

- A run that fails is a result, never an exception. The only exception is CancelledError: a
  cancelled run has ended its processes and closed its sockets before it is raised.
- A run happens once. Nothing is tried again: only the owner of the job knows whether it may be.
- Every run ends. Network runs have a limit in time; programs have one if the settings say so.
- ``reason`` is empty on success, else one clause for a person: one line, no credentials, and
  short enough for a log. ``output`` is what the program or server said: bounded, no credentials.

When a run started and how long it took is the caller's to know: runners read no clock.

What a run had to say, of any length, is kept in bounded memory.

    fed      |<-- head -->|  ......... left out, counted .........  |<-- tail -->|
    given    |<-- head -->| "\n[... 123456 bytes left out ...]\n" |<-- tail -->|

The beginning shows what was tried, the end shows how it went wrong; the middle is the progress
bar. Head and tail together have at most ``limit_bytes``. Credentials in addresses are taken out
when the text is given, not while it is fed: an address may come in pieces.

No text that leaves the runners has credentials.

    redis://user:secret@cache:6379     ->   redis://***@cache:6379
    amqp://:a@b/c@host GET /x?to=me    ->   amqp://***@host GET /x?to=me

What counts is a word, a stretch without white space: everything between its first `://` and its
last `@` goes, whatever it is. So a password may hold `/`, `@`, quotes or a second address and is
still removed; the price is that an innocent `@` further on takes the host with it. Text that was
cut in the middle of a word is judged as if the missing part held the other half of the credentials.

Every step looks at each byte a fixed number of times: the text may be hostile and a mebibyte
long. It is not a search for secrets in general: a token in a path or a query is not recognised,
which is why the runners never put one into a text in the first place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from journeyman.formats.ztick import Runner as RunnerRecord
from journeyman.protocols.ztick.grammar import job_message
from journeyman.timetables.run_options import NO_OPTIONS, RunOptions

HIDDEN = "***"

_SEPARATOR = b"://"
_HIDDEN = HIDDEN.encode()
_WORD = re.compile(rb"\S+")
MAX_REASON_CHARS = 500
MAX_SHOWN_CHARS = 100
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
Record_co = TypeVar("Record_co", bound=RunnerRecord, covariant=True)
Record_contra = TypeVar("Record_contra", bound=RunnerRecord, contravariant=True)


def redact(text: str) -> str:
    """The text without the userinfo of any address in it."""
    if "://" not in text:
        return text
    # Lone surrogates stand for bytes that were not UTF-8; they come back as they were.
    return redact_bytes(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")


def redact_bytes(data: bytes) -> bytes:
    """Remove credentials from bytes of no known encoding."""
    if _SEPARATOR not in data:
        return data
    return _WORD.sub(lambda word: _redact_word(word[0]), data)


def redact_cut(head: bytes, tail: bytes) -> tuple[bytes, bytes]:
    """Both sides of a cut: credentials that the cut went through are removed from each."""
    last, first = _last_word(head), _first_word(tail)
    before, behind = head[: len(head) - len(last)], tail[len(first) :]
    separator, at = last.find(_SEPARATOR), first.rfind(b"@")
    if separator >= 0:
        last = last[: separator + len(_SEPARATOR)] + _HIDDEN
    if at >= 0:
        first = _HIDDEN + first[at:]
    return redact_bytes(before) + last, first + redact_bytes(behind)


def _redact_word(word: bytes) -> bytes:
    separator, at = word.find(_SEPARATOR), word.rfind(b"@")
    if separator < 0 or at < separator:
        return word
    return word[: separator + len(_SEPARATOR)] + _HIDDEN + word[at:]


def _last_word(data: bytes) -> bytes:
    """The word that touches the end, if one does."""
    return data.rsplit(maxsplit=1)[-1] if data and not data[-1:].isspace() else b""


def _first_word(data: bytes) -> bytes:
    """The word that touches the beginning, if one does."""
    return data.split(maxsplit=1)[0] if data and not data[:1].isspace() else b""


class BoundedOutput:
    """Feed it everything; it keeps the head and the tail."""

    __slots__ = ("_dropped_bytes", "_head", "_head_limit", "_tail", "_tail_limit")

    def __init__(self, limit_bytes: int) -> None:
        self._head_limit = (limit_bytes + 1) // 2
        self._tail_limit = limit_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped_bytes = 0

    @property
    def full(self) -> bool:
        """Return whether feeding more can only push something out."""
        return len(self._head) + len(self._tail) >= self._head_limit + self._tail_limit

    def feed(self, data: bytes) -> None:
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail += data
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]
            self._dropped_bytes += excess

    def text(self) -> bytes:
        """Return what is kept, without credentials, and how much is not."""
        head, tail = bytes(self._head), bytes(self._tail)
        if not self._dropped_bytes:
            return redact_bytes(head + tail)
        head, tail = redact_cut(head, tail)
        return head + b"\n[... %d bytes left out ...]\n" % self._dropped_bytes + tail


@dataclass(frozen=True, slots=True)
class RunRequest(Generic[Record_co]):
    """One run of one job, by the runner of the rule that was chosen for it."""

    job_id: str
    execution_ns: int
    runner: Record_co
    rule: str = ""  # identifier of the rule or timetable that has this runner
    options: RunOptions = NO_OPTIONS
    facts: Mapping[str, Any] | None = None  # the subject of a notice

    def item(self) -> bytes:
        """Return what the run is about, for messages: the id of the job; the facts of a notice."""
        return self.job_id.encode() if self.facts is None else self.message()

    def message(self) -> bytes:
        """Return the facts of a notice, or the job, as JSON."""
        if self.facts is not None:
            return json.dumps(self.facts, ensure_ascii=False).encode(errors="replace")
        return job_message(self.job_id, self.execution_ns).encode()


@dataclass(frozen=True, slots=True)
class RunResult:
    success: bool
    reason: str = ""
    output: bytes = b""


class Runner(Protocol[Record_contra]):
    """Runs the requests of one kind of runner record, any number of them at a time."""

    async def run(self, request: RunRequest[Record_contra]) -> RunResult:
        """Do it. Raises nothing but CancelledError."""
        ...

    async def close(self) -> None:
        """Give back what runs share. No run may be under way; none may follow."""
        ...


class AnyRunner(Runner[RunnerRecord], Protocol):
    """Runs requests of every kind."""

    def prepare(self, kinds: Iterable[type]) -> None:
        """Runs of these kinds may come: import what takes long, in a thread."""
        ...


def failed_run(reason: str, output: bytes = b"") -> RunResult:
    """A failure, its reason made fit for one line of a log."""
    line = _printable(redact(reason))
    if len(line) > MAX_REASON_CHARS:
        line = line[: MAX_REASON_CHARS - 1] + "…"
    return RunResult(False, line, output)


def quote_name(text: str) -> str:
    """A name out of a rule, in quotes, for a reason."""
    text = redact(text)  # before it is cut: half a password is still half a password
    if len(text) > MAX_SHOWN_CHARS:
        text = text[: MAX_SHOWN_CHARS - 1] + "…"
    return f"'{text}'"


def limit_text(duration_ms: int) -> str:
    """A limit as a person would write it."""
    return f"{duration_ms / 1000:g} s"


def _printable(text: str) -> str:
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)
