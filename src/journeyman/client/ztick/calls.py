"""Every call of the schedule, over the ztick protocol: checks, requests, replies.

    REQUEST-ID SET mail.1 1711612800000000000      REQUEST-ID OK
    REQUEST-ID GET mail.1                          REQUEST-ID OK planned 1711612800000000000
    REQUEST-ID QUERY mail.                         REQUEST-ID mail.1 planned 17116...   per job
                                                   REQUEST-ID OK
    REQUEST-ID TIMETABLE ...                       see protocols/ztick/grammar.py
    anything                                       REQUEST-ID ERROR CODE [TEXT]

Everything may be repeated except ``run_timetable`` and removals, whose reply says whether it was
there. The original ztick is understood too; its refusals have no text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NoReturn, TypeVar, get_args

from journeyman.client import checks, conversation, errors
from journeyman.client.checks import Moment
from journeyman.client.service import ServiceKind
from journeyman.errors import TimetableError
from journeyman.formats.ztick import Runner, Status
from journeyman.protocols.ztick import grammar
from journeyman.protocols.ztick.commands import ErrorCode
from journeyman.protocols.ztick.parser import LINE_LIMIT_BYTES, tokenize
from journeyman.protocols.ztick.replies import AUTH_REQUIRED, join
from journeyman.timetables import Firing
from journeyman.timetables.run_options import RunOptions, option_text
from journeyman.timetables.zones import moment_of_label

DEFAULT_PORT = 5678
DEFAULT_BATCH = 500
_STATUSES = {status.word: status for status in Status}
_MAX_BODY_BYTES = LINE_LIMIT_BYTES - 24  # a request id of 64 bits, a space and the line end
_DENIED = (ErrorCode.AUTH_DENIED, ErrorCode.AUTH_REQUIRED, ErrorCode.AUTH_FAILED)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the schedule."""

    identifier: str
    status: Status
    execution_ns: int


@dataclass(frozen=True, slots=True)
class Rule:
    """Runs jobs whose identifier begins with the pattern."""

    identifier: str
    pattern: str
    runner: Runner
    options: dict[str, Any] = field(default_factory=dict)


def set(identifier: str, when: Moment) -> conversation.Call[None]:
    """Plan a job, or plan it again, whatever its status."""
    return _ask(["SET", _identifier(identifier), str(checks.moment(when))], _nothing)


def get(identifier: str) -> conversation.Call[Job | None]:
    """The job, or None."""
    return _or_none(
        _ask(["GET", _identifier(identifier)], lambda link, row: _job(link, identifier, row))
    )


def query(prefix: str = "") -> conversation.Call[list[Job]]:
    """Every job whose identifier begins with the prefix."""
    words = ["QUERY", prefix] if checks.text(prefix, "prefix") else ["QUERY"]
    return _list(words, lambda link, row: _job(link, row[0], row[1:]))


def remove(identifier: str) -> conversation.Call[bool]:
    """Remove the job; returns whether it existed."""
    return _removed(["REMOVE", _identifier(identifier)])


def set_rule(
    identifier: str, pattern: str, runner: Runner, **options: str | int | Sequence[str]
) -> conversation.Call[None]:
    """Create or replace a rule. ``on_failure`` and other options are those of docs/runners.md."""
    expected = 'a runner, for example Shell("echo hello") of journeyman.client'
    checks.one_of(runner, get_args(Runner), "runner", expected)
    named = [_identifier(identifier), checks.text(pattern, "pattern")]
    try:
        fields = grammar.read_run_options(options, runner).fields()
    except TimetableError as error:
        raise errors.InvalidRequest(str(error)) from None
    words = [f"{name}={option_text(value)}" for name, value in fields.items()]
    return _ask(["RULE", "SET", *named, *words, *_runner_words(runner)], _nothing)


def rules() -> conversation.Call[list[Rule]]:
    """Every rule."""
    return _list(["LISTRULES"], _rule)


def remove_rule(identifier: str) -> conversation.Call[bool]:
    """Remove the rule; returns whether it existed."""
    return _removed(["REMOVERULE", _identifier(identifier)])


# -- timetables ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimetableStatus:
    """A timetable as the server has it; ``next`` and ``last`` are local times with their offset."""

    identifier: str
    state: str  # active, paused or ended
    next_ns: int | None
    next: str | None
    last: str | None  # the last occurrence that was run, missed or skipped
    running: int
    waiting: int
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BackfilledJob:
    """An occurrence of the past: the status that its job had, and whether it is run (again)."""

    identifier: str
    execution_ns: int
    status: Status | None
    is_run: bool


def set_timetable(
    identifier: str, *, runner: Runner | None = None, **fields: str | int | Sequence[str]
) -> conversation.Call[None]:
    """Make a timetable, or replace it: ``set_timetable("nightly", cron="0 2 * * *", tz=...)``.

    The fields are those of docs/timetables.md; ``from`` is written ``from_``. Without a runner the
    rules decide. The same again changes nothing.
    """
    named: dict[str, Any] = {name.rstrip("_"): value for name, value in fields.items()}
    if runner is not None:
        named["runner"] = _runner_words(runner)
    try:
        grammar.read_timetable(named)
    except TimetableError as error:
        raise errors.InvalidRequest(str(error)) from None
    return _ask(["TIMETABLE", "SET", _identifier(identifier), *grammar.words_of(named)], _nothing)


def timetable(identifier: str) -> conversation.Call[TimetableStatus | None]:
    """The timetable, or None."""
    words = ["TIMETABLE", "GET", _identifier(identifier)]
    return _or_none(_ask(words, lambda link, row: _timetable(link, [identifier, *row])))


def timetables(prefix: str = "") -> conversation.Call[list[TimetableStatus]]:
    """Every timetable whose identifier begins with the prefix; runs are not counted here."""
    words = [prefix] if checks.text(prefix, "prefix") else []
    return _list(["TIMETABLE", "LIST", *words], _timetable, least=9)


def pause_timetable(identifier: str) -> conversation.Call[None]:
    """Run no further occurrences. Raises NotFound."""
    return _ask(["TIMETABLE", "PAUSE", _identifier(identifier)], _nothing)


def resume_timetable(identifier: str) -> conversation.Call[None]:
    """Continue with the first occurrence after now. Raises NotFound."""
    return _ask(["TIMETABLE", "RESUME", _identifier(identifier)], _nothing)


def remove_timetable(identifier: str) -> conversation.Call[bool]:
    """Remove the timetable; returns whether it existed."""
    return _removed(["TIMETABLE", "REMOVE", _identifier(identifier)])


def run_timetable(identifier: str) -> conversation.Call[str]:
    """Run it once now; returns the id of the job. Raises NotFound; never sent twice."""
    return _exchange(["TIMETABLE", "RUN", _identifier(identifier)], lambda _, row: row[0])


def next_firings(identifier: str, count: int = 5) -> conversation.Call[list[Firing]]:
    """The next occurrences, with warnings about daylight saving time. Raises NotFound."""
    checks.whole_number(count, "count", 1, grammar.MAX_FIRINGS)
    return _list(["TIMETABLE", "NEXT", _identifier(identifier), str(count)], _firing, least=3)


def backfill(
    identifier: str, begin: datetime, until: datetime, *, preview: bool = False
) -> conversation.Call[list[BackfilledJob]]:
    """Run the occurrences of [begin, until) that have not succeeded, or only show them."""
    times = [checks.zoned(begin, "begin"), checks.zoned(until, "until")]
    words = [time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for time in times]
    more = ["preview"] if preview else []
    return _list(
        ["TIMETABLE", "BACKFILL", _identifier(identifier), *words, *more], _backfilled, least=4
    )


def stat() -> conversation.Call[dict[str, str]]:
    """The server's statistics by name."""
    pairs = _list(["STAT"], lambda _, row: (row[0], row[1]), least=2)

    def converse(link: conversation.Link) -> conversation.Conversation[dict[str, str]]:
        return dict((yield from pairs(link)))

    return converse


# -- many at once --------------------------------------------------------------------------------

Planned = tuple[str, Moment]


def batches_of(jobs: Iterable[Planned], batch: int) -> Iterator[list[Planned]]:
    """The jobs in lists; each is checked to be a pair. Raises InvalidRequest at once."""
    checks.one_of(jobs, (Iterable,), "jobs", "an iterable of (identifier, when)")
    checks.batch(batch)

    def batches(waiting: Iterator[Planned]) -> Iterator[list[Planned]]:
        while some := list(islice(waiting, batch)):
            for job in some:
                checks.pair(job, "each job", "(identifier, when)")
            yield some

    return batches(iter(jobs))


def set_all(jobs: list[Planned]) -> conversation.Call[list[tuple[str, errors.Refused | None]]]:
    """Plan these jobs: each with its refusal, or None. An invalid one is a refusal as well."""
    bodies = [_set_body(identifier, when) for identifier, when in jobs]
    valid = [body for body in bodies if isinstance(body, bytes)]

    def read(
        link: conversation.Link, place: int, _may_be_there: bool
    ) -> conversation.Conversation[errors.Refused | None]:
        try:
            yield from _ok(link, numbers[place])
        except errors.Refused as refused:
            if not link.is_open:  # not this job was refused, but the connection
                raise
            return refused
        return None

    numbers: dict[int, bytes] = {}

    def encode(link: conversation.Link, some: range) -> bytes:
        for place in some:
            numbers[place] = _number(link)
        return b"".join(numbers[place] + b" " + valid[place] + b"\n" for place in some)

    ask = conversation.pipelined(len(valid), encode, read)

    def converse(
        link: conversation.Link,
    ) -> conversation.Conversation[list[tuple[str, errors.Refused | None]]]:
        replies = iter((yield from ask(link)))
        return [
            (identifier, next(replies) if isinstance(body, bytes) else body)
            for (identifier, _), body in zip(jobs, bodies, strict=True)
        ]

    return converse


# -- requests and replies ------------------------------------------------------------------------


def _ask(
    command_words: list[str], value: Callable[[conversation.Link, list[str]], T]
) -> conversation.Call[T]:
    """A command whose reply is one line: its value, made of the words after ``OK``."""
    return conversation.retry_once(_exchange(command_words, value))


def _exchange(
    command_words: list[str], value: Callable[[conversation.Link, list[str]], T]
) -> conversation.Call[T]:
    body = _body(command_words)

    def converse(link: conversation.Link) -> conversation.Conversation[T]:
        yield from link.connected()
        number = _number(link)
        yield conversation.Send(number + b" " + body + b"\n")
        return value(link, (yield from _ok(link, number)))

    return converse


def _list(
    command_words: list[str], value: Callable[[conversation.Link, list[str]], T], *, least: int = 3
) -> conversation.Call[list[T]]:
    """A command whose reply is a line per thing, then ``OK``."""
    body = _body(command_words)

    def converse(link: conversation.Link) -> conversation.Conversation[list[T]]:
        yield from link.connected()
        number = _number(link)
        yield conversation.Send(number + b" " + body + b"\n")
        found = []
        while (row := (yield from _row(link, number))) != ["OK"]:
            if len(row) < least:
                _bad(link, row)
            found.append(value(link, row))
        return found

    return conversation.retry_once(converse)


def _removed(command_words: list[str]) -> conversation.Call[bool]:
    ask = _or_none(_exchange(command_words, lambda *_: True))

    def converse(link: conversation.Link) -> conversation.Conversation[bool]:
        yield from link.connected()
        try:
            return (yield from ask(link)) is not None
        except errors.CannotConnect:
            raise
        except errors.ConnectionFailed as error:
            raise errors.AnswerLost(
                f"{error}; {' '.join(command_words)} may have happened, or not"
            ) from None

    return converse


def _or_none(ask: conversation.Call[T]) -> conversation.Call[T | None]:
    def converse(link: conversation.Link) -> conversation.Conversation[T | None]:
        try:
            return (yield from ask(link))
        except errors.NotFound:
            return None

    return converse


def _number(link: conversation.Link) -> bytes:
    """The next request id of this connection."""
    link.requests += 1
    return b"%d" % link.requests


def _ok(link: conversation.Link, number: bytes) -> conversation.Conversation[list[str]]:
    row = yield from _row(link, number)
    if row[0] != "OK":
        _bad(link, row)
    return row[1:]


def _row(link: conversation.Link, number: bytes) -> conversation.Conversation[list[str]]:
    """A line of the reply without its request id. Raises Refused."""
    words = [word.decode("utf-8", "replace") for word in (yield from _tokens(link))]
    if words[:1] == ["ERROR"]:  # it concerns the connection, not a command
        link.drop()
        raise errors.AccessDenied(*words[1:2] or ["closed"])
    if len(words) < 2 or words[0].encode() != number:
        _bad(link, words)
    if words[1] == "ERROR":
        raise _refusal(words[2:])
    return words[1:]


def _tokens(link: conversation.Link) -> conversation.Conversation[list[bytes]]:
    """A line ends at the first LF outside quotes."""
    line = yield from link.line()
    while line.replace(rb"\\", b"").replace(rb"\"", b"").count(b'"') % 2:
        line += b"\n" + (yield from link.line())
    return tokenize(line.removesuffix(b"\r"))


def _greet(secret: bytes) -> conversation.Greeting:
    return conversation.greeting(
        _body(["AUTH", secret.decode()]) + b"\n", b"OK", b"ERROR auth_", None
    )


_PROBE = conversation.Probe(b"probe GET journeyman.probe\n", AUTH_REQUIRED.rstrip())
SERVICE = ServiceKind("the schedule", "schedule", DEFAULT_PORT, _greet, _PROBE)


def _nothing(_link: conversation.Link, _reply_words: list[str]) -> None:
    return None


def _job(link: conversation.Link, identifier: str, reply_words: list[str]) -> Job:
    if len(reply_words) < 2 or reply_words[0] not in _STATUSES:
        _bad(link, reply_words)
    return Job(identifier, _STATUSES[reply_words[0]], int(reply_words[1]))


def _timetable(link: conversation.Link, row: list[str]) -> TimetableStatus:
    try:
        identifier, state, next_ns, next_, last, running, waiting, *words = row
        return TimetableStatus(
            identifier,
            state,
            None if next_ns == grammar.NOTHING else int(next_ns),
            None if next_ == grammar.NOTHING else next_,
            None if last == grammar.NOTHING else last,
            int(running),
            int(waiting),
            _fields(words),
        )
    except (ValueError, TimetableError):
        _bad(link, row)


def _fields(reply_words: list[str]) -> dict[str, Any]:
    """Return the fields as JSON has them, unless this machine does not know the zone."""
    fields = grammar.fields_of(reply_words)
    try:
        return grammar.read_timetable(fields)[0].fields()
    except TimetableError:
        return fields


def _firing(link: conversation.Link, row: list[str]) -> Firing:
    found = moment_of_label(row[0])
    if found is None:
        _bad(link, row)
    return Firing(found[0], row[0], row[1], row[2])


def _backfilled(link: conversation.Link, row: list[str]) -> BackfilledJob:
    try:
        status = None if row[2] == grammar.NOTHING else _STATUSES[row[2]]
        return BackfilledJob(row[0], int(row[1]), status, row[3] == "run")
    except (ValueError, KeyError):
        _bad(link, row)


def _rule(link: conversation.Link, row: list[str]) -> Rule:
    identifier, pattern, *words = row
    options, of_runner = grammar.split_options(words)
    runner = grammar.read_runner(of_runner)
    try:
        fields = RunOptions.read(options).fields()
    except TimetableError as error:
        runner, fields = str(error), {}
    if isinstance(runner, str):
        link.drop()
        raise errors.BadAnswer(f"{link.where} has a rule {identifier!r}: {runner}")
    return Rule(identifier, pattern, runner, fields)


def _bad(link: conversation.Link, reply_words: list[str]) -> NoReturn:
    raise link.unexpected(" ".join(reply_words))


def _identifier(identifier: str) -> str:
    return checks.text(identifier, "identifier")


def _runner_words(runner: Runner) -> list[str]:
    """The words of a runner; the server decides whether they make sense."""
    words = grammar.runner_words(runner)
    for word in words:
        checks.text(word, "each argument of the runner")
    return words


def _set_body(identifier: str, when: Moment) -> bytes | errors.Refused:
    try:
        return _body(["SET", _identifier(identifier), str(checks.moment(when))])
    except errors.InvalidRequest as error:
        return errors.Refused("invalid_request", str(error))


def _body(command_words: list[str]) -> bytes:
    """A command as it goes on the line after its request id."""
    try:
        body = join([word.encode() for word in command_words])
    except UnicodeEncodeError:
        raise errors.InvalidRequest(
            f"{command_words[0]}: an argument cannot be written as UTF-8"
        ) from None
    if len(body) > _MAX_BODY_BYTES:
        raise errors.InvalidRequest(
            f"{command_words[0]}: {len(body)} bytes, and a line holds {LINE_LIMIT_BYTES}"
        )
    return body


def _refusal(reply_words: list[str]) -> errors.Refused:
    code, reason = (reply_words[0] if reply_words else "error"), " ".join(reply_words[1:])
    if code == ErrorCode.NOT_FOUND:
        return errors.NotFound(code, reason)
    return errors.AccessDenied(code, reason) if code in _DENIED else errors.Refused(code, reason)
