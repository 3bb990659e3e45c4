"""A client of the schedule, over the ztick protocol: ``Schedule``.

    with Schedule("scheduler.internal", token="...") as schedule:
        schedule.set_rule("rule.mail", "mail.", Shell("send-mail"))
        schedule.set("mail.1", datetime.now(UTC) + timedelta(hours=1))
        schedule.get("mail.1")                        Job("mail.1", Status.PLANNED, ...)
        schedule.set_many((name, when) for ...)       many at once: pipelined

Every call waits for its answer, at most ``timeout_s``. When the connection breaks, calls that may
be repeated without harm are, once, on a new one: all but ``remove`` and ``remove_rule``,
whose answer says whether it was there; they raise AnswerLost. It also talks to the original ztick,
whose refusals have no text. One thread, one Schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NoReturn, Self, TypeVar, get_args

from journeyman.client import checks
from journeyman.client.checks import Moment
from journeyman.client.connection import ClientConnection, Tls
from journeyman.client.errors import (
    AccessDenied,
    AnswerLost,
    BadAnswer,
    CannotConnect,
    ConnectionFailed,
    InvalidRequest,
    NotFound,
    Refused,
    TimedOut,
)
from journeyman.formats.ztick import Runner, Status
from journeyman.protocols.ztick.parser import LINE_LIMIT_BYTES, tokenize
from journeyman.protocols.ztick.replies import join
from journeyman.protocols.ztick.rules import read_runner, runner_words

DEFAULT_PORT = 5678
_STATUSES = {status.word: status for status in Status}
_MAX_BODY_BYTES = LINE_LIMIT_BYTES - 24  # a request id of 64 bits, a space and the line end
_DENIED = frozenset({"auth_denied", "auth_required", "auth_failed"})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the server has it."""

    identifier: str
    status: Status
    execution_ns: int


@dataclass(frozen=True, slots=True)
class Rule:
    """What runs jobs whose identifier begins with the pattern."""

    identifier: str
    pattern: str
    runner: Runner


class Schedule:
    """See the module. Connects at the first call."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        token: str | None = None,
        tls: Tls = False,
        timeout_s: float = 10.0,
    ) -> None:
        self._token = None if token is None else checks.secret(token)
        self._connection = ClientConnection(
            host,
            port,
            tls=tls,
            timeout_s=timeout_s,
            greet=self._authenticate if token is not None else None,
            client="Schedule",
            service="the schedule",
        )
        self._requests = 0

    def set(self, identifier: str, when: Moment) -> None:
        """Plan a job, or plan it anew whatever its status was."""
        self._ask(["SET", _identifier(identifier), str(to_ns(when))])

    def set_many(
        self, jobs: Iterable[tuple[str, Moment]], *, batch: int = 500
    ) -> Iterator[tuple[str, Refused | None]]:
        """Plan many jobs, ``batch`` on the way at a time: each with its refusal, or None.

        Jobs whose answers a broken connection took are sent again, fewer at a time. What cannot
        be sent is a refusal like any other.
        """
        checks.one_of(jobs, (Iterable,), "jobs", "an iterable of (identifier, when)")
        return self._set_many(iter(jobs), checks.batch(batch))

    def _set_many(
        self, waiting: Iterator[tuple[str, Moment]], batch: int
    ) -> Iterator[tuple[str, Refused | None]]:
        while some := list(islice(waiting, batch)):
            for job in some:
                checks.pair(job, "each job", "(identifier, when)")
            bodies = [_set_body(identifier, when) for identifier, when in some]
            answers = iter(self._ask_many([body for body in bodies if isinstance(body, bytes)]))
            for (identifier, _), body in zip(some, bodies, strict=True):
                yield identifier, next(answers) if isinstance(body, bytes) else body

    def get(self, identifier: str) -> Job | None:
        """The job, or None."""
        try:
            words = self._ask(["GET", _identifier(identifier)])
        except NotFound:
            return None
        return self._job(identifier, words)

    def query(self, prefix: str = "") -> list[Job]:
        """Every job whose identifier begins with the prefix."""
        rows = self._list(["QUERY", prefix] if checks.text(prefix, "prefix") else ["QUERY"])
        return [self._job(row[0], row[1:]) for row in rows]

    def remove(self, identifier: str) -> bool:
        """Whether there was such a job."""
        return self._removed(["REMOVE", _identifier(identifier)])

    def set_rule(self, identifier: str, pattern: str, runner: Runner) -> None:
        """Make a rule, or replace it."""
        expected = 'a runner, for example Shell("echo hello") of journeyman.formats.ztick'
        checks.one_of(runner, get_args(Runner), "runner", expected)
        named = [_identifier(identifier), checks.text(pattern, "pattern")]
        self._ask(["RULE", "SET", *named, *_runner_words(runner)])

    def rules(self) -> list[Rule]:
        found = []
        for identifier, pattern, *words in self._list(["LISTRULES"], least=3):
            runner = read_runner(words)
            if isinstance(runner, str):
                raise BadAnswer(f"{self._connection.where} has a rule {identifier!r}: {runner}")
            found.append(Rule(identifier, pattern, runner))
        return found

    def remove_rule(self, identifier: str) -> bool:
        """Whether there was such a rule."""
        return self._removed(["REMOVERULE", _identifier(identifier)])

    def stat(self) -> dict[str, str]:
        """What the server tells about itself, by name."""
        return {row[0]: row[1] for row in self._list(["STAT"], least=2)}

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- exchanges ---------------------------------------------------------------------------------

    def _ask(self, words: list[str]) -> list[str]:
        body = _body(words)
        return self._twice(lambda: self._read_ok(self._send([body])[0]))

    def _ask_many(self, bodies: list[bytes]) -> list[Refused | None]:
        """One answer for each command, in order."""
        answers: list[Refused | None] = []
        at_a_time = len(bodies)
        while (before := len(answers)) < len(bodies):
            try:
                some = bodies[before : before + at_a_time]
                self._read_answers(self._send(some), answers)
            except (CannotConnect, TimedOut):
                raise
            except ConnectionFailed:
                if at_a_time == 1 and before == len(answers):
                    raise
                at_a_time = max(1, at_a_time // 4)
        return answers

    def _read_answers(self, requests: list[bytes], answers: list[Refused | None]) -> None:
        for request in requests:
            try:
                self._read_ok(request)
                answers.append(None)
            except Refused as refused:
                if not self._connection.is_open:  # not this job was refused, but all of us
                    raise
                answers.append(refused)

    def _list(self, words: list[str], least: int = 3) -> list[list[str]]:
        def ask() -> list[list[str]]:
            request = self._send([_body(words)])[0]
            rows = []
            while (row := self._read_row(request)) != ["OK"]:
                if len(row) < least:
                    self._bad(row)
                rows.append(row)
            return rows

        return self._twice(ask)

    def _removed(self, words: list[str]) -> bool:
        body = _body(words)
        self._connection.open()
        try:
            self._read_ok(self._send([body])[0])
        except NotFound:
            return False
        except CannotConnect:
            raise
        except ConnectionFailed as error:
            raise AnswerLost(f"{error}; {' '.join(words)} may have happened, or not") from error
        return True

    def _twice(self, exchange: Callable[[], T]) -> T:
        """Once more on a new connection, if this one broke; not if there is none to be had."""
        try:
            return exchange()
        except (CannotConnect, TimedOut):
            raise
        except ConnectionFailed:
            return exchange()

    def _send(self, bodies: list[bytes]) -> list[bytes]:
        """Send them all; their request ids."""
        first = self._requests + 1
        self._requests += len(bodies)
        requests = [b"%d" % number for number in range(first, self._requests + 1)]
        self._connection.allow()
        lines = zip(requests, bodies, strict=True)
        self._connection.send(b"".join(request + b" " + body + b"\n" for request, body in lines))
        return requests

    def _read_ok(self, request: bytes) -> list[str]:
        row = self._read_row(request)
        if row[0] != "OK":
            self._bad(row)
        return row[1:]

    def _read_row(self, request: bytes) -> list[str]:
        """A line of the answer without its request id. Raises Refused."""
        words = [word.decode("utf-8", "replace") for word in self._read_tokens()]
        if words[:1] == ["ERROR"]:  # of the connection, not of a command
            self._connection.close()
            raise AccessDenied(*words[1:2] or ["closed"])
        if len(words) < 2 or words[0].encode() != request:
            self._bad(words)
        if words[1] == "ERROR":
            raise _refusal(words[2:])
        return words[1:]

    def _read_tokens(self) -> list[bytes]:
        """A line ends at the first LF outside quotes."""
        line = self._connection.read_line()
        while line.replace(rb"\\", b"").replace(rb"\"", b"").count(b'"') % 2:
            line += b"\n" + self._connection.read_line()
        return tokenize(line.removesuffix(b"\r"))

    def _authenticate(self, connection: ClientConnection) -> None:
        connection.allow()
        connection.send(_body(["AUTH", self._token or ""]) + b"\n")
        answer = connection.read_line()
        if answer != b"OK":
            raise AccessDenied(answer.removeprefix(b"ERROR ").decode("utf-8", "replace"))

    def _job(self, identifier: str, words: list[str]) -> Job:
        if len(words) < 2 or words[0] not in _STATUSES:
            self._bad(words)
        return Job(identifier, _STATUSES[words[0]], int(words[1]))

    def _bad(self, words: list[str]) -> NoReturn:
        raise self._connection.unexpected(" ".join(words))


def to_ns(when: Moment) -> int:
    """Nanoseconds since 1970. Raises InvalidRequest for a time without a zone, or too far away."""
    return checks.moment(when)


def _identifier(identifier: str) -> str:
    return checks.text(identifier, "identifier")


def _runner_words(runner: Runner) -> list[str]:
    """The words of a runner; whether they make sense is for the server to say."""
    words = runner_words(runner)
    for word in words:
        checks.text(word, "each argument of the runner")
    return words


def _set_body(identifier: str, when: Moment) -> bytes | Refused:
    try:
        return _body(["SET", _identifier(identifier), str(to_ns(when))])
    except InvalidRequest as error:
        return Refused("invalid_request", str(error))


def _body(words: list[str]) -> bytes:
    """A command as it goes on the line behind its request id."""
    try:
        body = join([word.encode() for word in words])
    except UnicodeEncodeError:
        raise InvalidRequest(f"{words[0]}: an argument cannot be written as UTF-8") from None
    if len(body) > _MAX_BODY_BYTES:
        raise InvalidRequest(f"{words[0]}: {len(body)} bytes, and a line holds {LINE_LIMIT_BYTES}")
    return body


def _refusal(words: list[str]) -> Refused:
    code, reason = (words[0] if words else "error"), " ".join(words[1:])
    if code == "not_found":
        return NotFound(code, reason)
    return AccessDenied(code, reason) if code in _DENIED else Refused(code, reason)
