"""The words of runners (RULE SET) and timetables (TIMETABLE SET): words <-> values, both ways.

    shell  <command>                             one word, in quotes if it has spaces
    direct <executable> [<argument>...]
    awf    <workflow> [--input <key=value>]...
    http   GET|POST|PUT|DELETE <url>             http:// or https://
    amqp   <dsn> <exchange> <routing_key>        amqp://[user[:password]@]host[:port][/vhost]
    redis  <url> PUBLISH|RPUSH|LPUSH|SET <key>   redis://[user[:password]@]host[:port][/db]
    queue  <name> [-ttr=MS] [-ttl=MS] [-priority=N] [-max-attempts=N] [-max-fails=N]
                  [-retry-delay=MS] [-payload=TEXT] [-task=NAME]
    journal <queue>                              a fan-out queue of this server
    mail   <address>...                          where a failure is reported, and nowhere else

Runner names, methods and commands are exact, case included. Words after the last argument of
http and amqp are ignored; shell takes exactly its one, redis its three, journal its one. What is
checked is what is known without running the rule: an address that could never be reached is
refused here, where the client sees it, and not at every run. Empty commands, names and keys pass,
as in the original. A runner is refused with one phrase, the text of ``ERROR invalid_args``. The
phrases never repeat an address: it may hold a password.

The queue runner makes a job of the work queue out of a due job. Its flags are those of the workq
command ``add``, with its limits; ttr and ttl, which are arguments there, are flags here. Without
them a worker has a minute, and the job and its result a day. Without ``-payload`` the payload is
that of the http runner: job id and time, as JSON. The id of the job is made of the id and the time
of the scheduled one. So a job that is run again, because the server stopped before it could note
the end of the run, is not added twice.

    <id> cron "0 2 * * *" tz=Europe/Berlin catch_up=once run shell "make backup"
         kind  when       name=value ...                 run, then the words of a runner

The names are those of journeyman.timetables.timetable; lists have commas between their items. The
same words describe a timetable in a reply, so a line of LIST, from the kind on, sets it again.

    TIMETABLE GET     OK <state> <next_ns> <next> <last> <running> <waiting> <kind> <when> ...
    TIMETABLE LIST    <id> <state> <next_ns> <next> <last> <running> <waiting> <kind> ...  per line
    TIMETABLE NEXT    <local time> <utc> <warning>                                         per line
    TIMETABLE RUN     OK <job id>
    BACKFILL          <job id> <execution_ns> <status> run | keep                          per line

``-`` stands for no time and no status. ``read_timetable`` is also for fields that come as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from journeyman.errors import TimetableError
from journeyman.formats import ztick
from journeyman.formats.ztick import Runner
from journeyman.protocols.kestrel.parser import is_queue_name
from journeyman.protocols.workq import readers
from journeyman.protocols.workq.commands import Add, RefusedLine
from journeyman.protocols.workq.replies import id_text
from journeyman.protocols.ztick import commands
from journeyman.protocols.ztick.replies import in_a_message, join
from journeyman.timetables import Timetable
from journeyman.timetables.run_options import (
    NO_OPTIONS,
    OPTION_FIELDS,
    RunOptions,
    option_text,
)
from journeyman.timetables.timetable import FIELDS, KINDS, parse_zoned_time
from journeyman.timetables.zones import check_is_iana, zone_of

DEFAULT_TTR_MS = 60_000
DEFAULT_TTL_MS = 86_400_000

_NEW = ("id", "key", "replace")
_FLAGS = (
    "ttr",
    "ttl",
    "priority",
    "max-attempts",
    "max-fails",
    "retry-delay",
    "payload",
    "task",
    *_NEW,
)


def read_queue(tokens: Sequence[str]) -> ztick.WorkQueueRunner | str:
    """The runner that these words describe, or one phrase that says what is wrong."""
    if not tokens:
        return "missing required argument: name"
    runner = ztick.WorkQueueRunner(tokens[0], tuple(tokens[1:]))
    job = queue_job(runner, "any", 0)
    return job if isinstance(job, str) else runner


def queue_job(
    runner: ztick.WorkQueueRunner,
    job_id: str,
    execution_ns: int,
    salt: bytes = b"",
    message: str = "",
) -> Add | str:
    """The job to add, or why there is none. A log may hold unchecked rules.

    ``message`` is JSON, to replace ``job_message``.
    """
    from journeyman.protocols.workq.salts import salted_id  # loads OpenSSL

    message = message or job_message(job_id, execution_ns)
    flags = _read_flags(runner.flags)
    if isinstance(flags, str):
        return flags
    payload = flags.pop("payload", None)
    task = flags.pop("task", None)
    if payload is None and task is not None:  # a call of a task, as journeyman.tasks writes it
        payload = f'{{"v":1,"task":{json.dumps(task)},"args":[{message}],"kwargs":{{}}}}'
    elif payload is None:
        payload = message
    tokens = (
        "add",
        flags.pop("id", None) or id_text(salted_id(work_id(job_id, execution_ns), salt)),
        runner.name,
        flags.pop("ttr", str(DEFAULT_TTR_MS)),
        flags.pop("ttl", str(DEFAULT_TTL_MS)),
        "0",
    )
    encoded = {key.encode(): value.encode() for key, value in flags.items()}
    job = readers.add([word.encode() for word in tokens], encoded, payload.encode())
    if isinstance(job, RefusedLine):
        return f"the work queue would refuse the job: {job.complaint}"
    assert isinstance(job, Add)
    return job


def job_message(job_id: str, execution_ns: int) -> str:
    """Return what a due job is for other programs: JSON."""
    quoted = json.dumps(job_id, ensure_ascii=False)
    return f'{{"job_id":{quoted},"execution":{execution_ns}}}'


def _read_flags(tokens: Sequence[str]) -> dict[str, str] | str:
    flags: dict[str, str] = {}
    for word in tokens:
        key, equals, value = word.removeprefix("-").partition("=")
        if not word.startswith("-") or not equals or key not in _FLAGS:
            return f"unknown queue flag: expected {', '.join(f'-{name}=' for name in _FLAGS)}"
        if key in flags:
            return f"-{key} is given twice"
        flags[key] = value
    return flags


def work_id(job_id: str, execution_ns: int) -> bytes:
    """Always the same for the same run; in the form of a UUID of version 4."""
    import hashlib  # loads OpenSSL, which no client needs

    digest = hashlib.sha256(b"%d %b" % (execution_ns, job_id.encode())).digest()
    found = bytearray(digest[:16])
    found[6] = found[6] & 0x0F | 0x40
    found[8] = found[8] & 0x3F | 0x80
    return bytes(found)


HTTP_METHODS = ("GET", "POST", "PUT", "DELETE")
REDIS_COMMANDS = ("PUBLISH", "RPUSH", "LPUSH", "SET")
MAX_PORT = 65_535
MAX_REDIS_DB = 255  # one byte in the original

MAX_RECIPIENTS = 20

_INPUT_FLAG = "--input"
_MAIL_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,255}")

# In an address a space or a control character could only smuggle in a second line of a request.
_NOT_IN_ADDRESS = re.compile(r"[\x00-\x20\x7f]")
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:@\[\]]+)(?::(?P<port>.*))?")


def read_runner(tokens: Sequence[str]) -> ztick.Runner | str:
    """The runner that these words describe, or one phrase that says what is wrong."""
    if not tokens:
        return _missing("runner")
    name, *args = tokens
    read = _RUNNER_READERS.get(name)
    if read is None and "/" in name:
        return f"unknown runner {_quote(name)}: write shell {_quote(name)} to run a program"
    if read is None:
        return f"unknown runner {_quote(name)}: expected {_one_of(_RUNNER_READERS)}"
    return read(args)


def read_reporter(tokens: Sequence[str]) -> ztick.Runner | str:
    """Read what reports a failure: a runner, or a mail."""
    if tokens and tokens[0] == ztick.codec.MAIL_WORD:
        return _read_mail(tokens[1:])
    return read_runner(tokens)


def runner_words(runner: ztick.Runner) -> list[str]:
    """The words that ``read_runner`` reads back as this runner."""
    match runner:
        case ztick.Shell(command):
            return ["shell", command]
        case ztick.Direct(executable, args):
            return ["direct", executable, *args]
        case ztick.Awf(workflow, inputs):
            return ["awf", workflow, *(word for value in inputs for word in (_INPUT_FLAG, value))]
        case ztick.Http(method, url):
            return ["http", method, url]
        case ztick.Amqp(dsn, exchange, routing_key):
            return ["amqp", dsn, exchange, routing_key]
        case ztick.Redis(url, command, key):
            return ["redis", url, command, key]
        case ztick.WorkQueueRunner(name, flags):
            return ["queue", name, *flags]
        case ztick.FanOutRunner(queue):
            return ["journal", queue]
        case ztick.Mail(recipients):
            return ["mail", *recipients]


def split_options(tokens: Sequence[str]) -> tuple[dict[str, str], Sequence[str]]:
    """The options that stand before the words of a rule's runner, and these words."""
    options: dict[str, str] = {}
    for place, word in enumerate(tokens):
        name, equals, value = word.partition("=")
        if not equals or name not in OPTION_FIELDS or name in options:
            return options, tokens[place:]
        options[name] = value
    return options, ()


def read_run_options(fields: Mapping[str, Any], runner: Runner | None) -> RunOptions:
    """Return what these fields say about the runs by this runner. Raises TimetableError."""
    options = RunOptions.read(fields) if fields else NO_OPTIONS
    check_options(options, runner)
    return options


def check_options(options: RunOptions, runner: Runner | None) -> None:
    """Raises TimetableError for what does not go with the runner."""
    if options.on_failure and isinstance(problem := read_reporter(options.on_failure), str):
        raise TimetableError("on_failure", problem, "mail and addresses, or a runner")
    # A program that a token chooses by name only, such as a workflow of awf, must not be given
    # another directory or environment by it.
    if (name := options.needs_program) and not isinstance(runner, ztick.Shell | ztick.Direct):
        raise TimetableError(name, "it means nothing here", "it with the runners shell and direct")


def rule_line(
    request_id: bytes,
    identifier: str,
    pattern: str,
    runner: ztick.Runner,
    options: RunOptions = NO_OPTIONS,
) -> bytes:
    """One line of the answer to LISTRULES."""
    named = (f"{name}={option_text(value)}" for name, value in options.fields().items())
    tokens = (identifier, pattern, *named, *runner_words(runner))
    return join((request_id, *(word.encode() for word in tokens))) + b"\n"


# -- one reader a runner -------------------------------------------------------------------------


def _read_shell(args: list[str]) -> ztick.Runner | str:
    if not args:
        return _missing("command")
    if len(args) > 1:
        return "shell takes exactly one argument: put a command of several words in quotes"
    return _no_nul(args) or ztick.Shell(args[0])


def _read_direct(args: list[str]) -> ztick.Runner | str:
    if not args:
        return _missing("executable")
    return _no_nul(args) or ztick.Direct(args[0], tuple(args[1:]))


def _read_awf(args: list[str]) -> ztick.Runner | str:
    if not args:
        return _missing("workflow")
    workflow, *options = args
    for flag in options[::2]:
        if flag != _INPUT_FLAG:
            return f"unknown awf option {_quote(flag)}: expected {_INPUT_FLAG}"
    if len(options) % 2:
        return _missing("input")
    return _no_nul(args) or ztick.Awf(workflow, tuple(options[1::2]))


def _read_http(args: list[str]) -> ztick.Runner | str:
    if len(args) < 2:
        return _missing(("method", "url")[len(args)])
    method, url = args[:2]
    if method not in HTTP_METHODS:
        return f"unknown http method {_quote(method)}: expected {_one_of(HTTP_METHODS)}"
    scheme, found, rest = url.partition("://")
    if not found or scheme not in ("http", "https"):
        return "the url must begin with http:// or https://"
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return _bad_address("url", url, authority) or ztick.Http(method, url)


def _read_amqp(args: list[str]) -> ztick.Runner | str:
    if len(args) < 3:
        return _missing(("dsn", "exchange", "routing_key")[len(args)])
    dsn, exchange, routing_key = args[:3]
    if dsn.startswith("amqps://"):
        return "amqps:// is not supported: the dsn must begin with amqp://"
    if not dsn.startswith("amqp://"):
        return "the dsn must begin with amqp://"
    authority = dsn.removeprefix("amqp://").partition("/")[0]
    return _bad_address("dsn", dsn, authority) or ztick.Amqp(dsn, exchange, routing_key)


def _read_redis(args: list[str]) -> ztick.Runner | str:
    if len(args) < 3:
        return _missing(("url", "command", "key")[len(args)])
    if len(args) > 3:
        return "redis takes exactly three arguments: url, command and key"
    url, command, key = args
    if url.startswith("rediss://"):
        return "rediss:// is not supported: the url must begin with redis://"
    if not url.startswith("redis://"):
        return "the url must begin with redis://"
    if command not in REDIS_COMMANDS:
        return f"unknown redis command {_quote(command)}: expected {_one_of(REDIS_COMMANDS)}"
    authority, _, db = url.removeprefix("redis://").partition("/")
    if db and not _is_number(db, 0, MAX_REDIS_DB):
        return f"the database in the url must be a number from 0 to {MAX_REDIS_DB}"
    return _bad_address("url", url, authority) or ztick.Redis(url, command, key)


def _read_journal(args: list[str]) -> ztick.Runner | str:
    if not args:
        return _missing("queue")
    if len(args) > 1:
        return "journal takes exactly one argument: queue"
    if not is_queue_name(args[0]):
        return "the queue must be a name of A-Z a-z 0-9 : _ -, up to 200 of them"
    return ztick.FanOutRunner(args[0])


def _read_mail(args: Sequence[str]) -> ztick.Runner | str:
    if not args:
        return _missing("address")
    if len(args) > MAX_RECIPIENTS or not all(map(_MAIL_ADDRESS.fullmatch, args)):
        return f"mail takes up to {MAX_RECIPIENTS} addresses such as ops@example.com"
    return ztick.Mail(tuple(args))


_RUNNER_READERS: dict[str, Callable[[list[str]], ztick.Runner | str]] = {
    "shell": _read_shell,
    "direct": _read_direct,
    "http": _read_http,
    "awf": _read_awf,
    "amqp": _read_amqp,
    "redis": _read_redis,
    "queue": read_queue,
    "journal": _read_journal,
}


# -- what they check -----------------------------------------------------------------------------


def _bad_address(name: str, address: str, authority: str) -> str | None:
    """Return what is wrong with an address, where its authority is ``[userinfo@]host[:port]``."""
    if _NOT_IN_ADDRESS.search(address):
        return f"the {name} must not contain spaces or control characters"
    # A password may hold an `@`; a host cannot, so the last one ends the userinfo.
    match = _AUTHORITY.fullmatch(authority.rpartition("@")[2])
    if match is None:
        return f"the {name} has no host"
    port = match["port"]
    if port is not None and not _is_number(port, 1, MAX_PORT):
        return f"the port in the {name} must be a number from 1 to {MAX_PORT}"
    return None


def _no_nul(arguments: Sequence[str]) -> str | None:
    """No program can be given a NUL byte as part of an argument."""
    return "an argument must not contain a NUL byte" if any("\0" in w for w in arguments) else None


def _is_number(text: str, low: int, high: int) -> bool:
    digits = text.lstrip("0") or "0"
    return text.isascii() and text.isdigit() and len(digits) <= 5 and low <= int(digits) <= high


def _missing(name: str) -> str:
    return f"missing required argument: {name}"


def _quote(word: str) -> str:
    return in_a_message(word.encode())


def _one_of(names: Iterable[str]) -> str:
    return ", ".join(names)


TIMETABLE_COMMANDS = {
    "set": commands.SetTimetable,
    "get": commands.GetTimetable,
    "list": commands.ListTimetables,
    "pause": commands.PauseTimetable,
    "resume": commands.ResumeTimetable,
    "remove": commands.RemoveTimetable,
    "run": commands.RunTimetable,
    "next": commands.NextOfTimetable,
    "backfill": commands.BackfillTimetable,
}
RUN_WORD = "run"
NOTHING = "-"
DEFAULT_FIRINGS = 5
MAX_FIRINGS = 100
_PREVIEW = "preview"
_USAGE = "<kind> <when> [name=value]... [run <runner> ...]"


def read_timetable(fields: Mapping[str, Any]) -> tuple[Timetable, Runner | None]:
    """A new timetable, checked, and its runner if it has one. Raises TimetableError."""
    timetable = Timetable.read(fields)
    check_is_iana(timetable.tz)
    runner = read_runner(timetable.runner) if timetable.runner else None
    if isinstance(runner, str):
        raise TimetableError("runner", runner, "the words of a runner, as in RULE SET")
    check_options(timetable.options, runner)
    if timetable.check_in and isinstance(
        problem := read_runner(["http", "GET", timetable.check_in]), str
    ):
        raise TimetableError("check_in", problem, "a URL")
    return timetable, runner


def runners_of(command: commands.SetRule | commands.SetTimetable) -> list[Runner]:
    """All runners that a command names, for the permissions of a token."""
    tokens: list[tuple[str, ...]] = []
    if isinstance(command, commands.SetRule):
        options = command.options
    else:
        options = command.timetable.options
        if command.timetable.check_in:
            tokens.append(("http", "GET", command.timetable.check_in))
    if options.on_failure:
        tokens.append(options.on_failure)
    read = [command.runner, *map(read_reporter, tokens)]
    return [runner for runner in read if runner is not None and not isinstance(runner, str)]


def fields_of(tokens: Sequence[str]) -> dict[str, Any]:
    """The fields that these words name. Raises TimetableError; the values are not checked."""
    if len(tokens) < 2 or tokens[0] not in KINDS:
        given = tokens[0] if tokens else ""
        problem = f"it begins with {given[:40]!r}" if given else "it is empty"
        raise TimetableError("timetable", problem, f"{_USAGE}; kind is {', '.join(KINDS)}")
    fields: dict[str, Any] = {tokens[0]: tokens[1]}
    for place, word in enumerate(tokens[2:], 2):
        if word == RUN_WORD:
            fields["runner"] = list(tokens[place + 1 :])
            break
        name, equals, value = word.partition("=")
        if not equals or name not in FIELDS or name in (*KINDS, "runner"):
            raise TimetableError("timetable", f"the word {word[:40]!r} is not known", _USAGE)
        if name in fields:
            raise TimetableError(name, "it is given twice", "it once")
        fields[name] = value
    return fields


def words_of(fields: Mapping[str, Any]) -> list[str]:
    """The words that name these fields."""
    (kind,) = (name for name in KINDS if name in fields)
    tokens = [kind, _text(fields[kind])]
    for name, value in fields.items():
        if name not in (kind, "runner"):
            text = option_text(value) if name in OPTION_FIELDS else _text(value)
            tokens.append(f"{name}={text}")
    if "runner" in fields:
        tokens += [RUN_WORD, *fields["runner"]]
    return tokens


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


# -- commands; tokens[0] is the request id, tokens[1] TIMETABLE, tokens[2] what to do --------------


def read_timetable_command(tokens: list[bytes]) -> commands.Event | None:
    """Read a TIMETABLE command. None: an unknown word, which is passed over in silence."""
    read = _TIMETABLE_READERS.get(tokens[2]) if len(tokens) > 2 else None
    if read is None:
        return None
    request_id = tokens[0]
    try:
        return read(request_id, [token.decode() for token in tokens[3:]])
    except UnicodeDecodeError:
        return _refused(request_id, "an argument is not valid UTF-8")
    except TimetableError as error:
        return _refused(request_id, str(error))
    except IndexError:
        return _refused(request_id, "missing required argument: timetable_identifier")


def _refused(request_id: bytes, message: str) -> commands.RefusedCommand:
    return commands.RefusedCommand(request_id, commands.ErrorCode.INVALID_ARGS, message)


def _read_set(request_id: bytes, arguments: list[str]) -> commands.Event:
    identifier = arguments[0]
    return commands.SetTimetable(request_id, identifier, *read_timetable(fields_of(arguments[1:])))


def _read_list(request_id: bytes, arguments: list[str]) -> commands.Event:
    return commands.ListTimetables(request_id, arguments[0] if arguments else "")


def _read_next(request_id: bytes, arguments: list[str]) -> commands.Event:
    identifier, *rest = arguments[0], *arguments[1:2]
    count = rest[0] if rest else str(DEFAULT_FIRINGS)
    if not count.isascii() or not count.isdigit() or not 1 <= int(count[:9]) <= MAX_FIRINGS:
        allowed = f"a whole number from 1 to {MAX_FIRINGS}"
        raise TimetableError("count", f"{count[:40]!r} is not possible", allowed)
    return commands.NextOfTimetable(request_id, identifier, int(count))


def _read_backfill(request_id: bytes, arguments: list[str]) -> commands.Event:
    identifier = arguments[0]
    if len(arguments) < 3:
        missing = "from" if len(arguments) == 1 else "until"
        return _refused(request_id, f"missing required argument: {missing}")
    if arguments[3:4] not in ([], [_PREVIEW]):
        raise TimetableError("backfill", f"the word {arguments[3][:40]!r} is not known", _PREVIEW)
    utc = zone_of("UTC")
    from_s, until_s = (
        parse_zoned_time(arguments[1], utc, "from"),
        parse_zoned_time(arguments[2], utc, "until"),
    )
    if from_s >= until_s:
        raise TimetableError("until", "it is not after from", "a later time")
    return commands.BackfillTimetable(request_id, identifier, from_s, until_s, len(arguments) > 3)


_TIMETABLE_READERS: dict[bytes, Callable[[bytes, list[str]], commands.Event]] = {
    b"SET": _read_set,
    b"LIST": _read_list,
    b"NEXT": _read_next,
    b"BACKFILL": _read_backfill,
    b"GET": lambda request_id, tokens: commands.GetTimetable(request_id, tokens[0]),
    b"PAUSE": lambda request_id, tokens: commands.PauseTimetable(request_id, tokens[0]),
    b"RESUME": lambda request_id, tokens: commands.ResumeTimetable(request_id, tokens[0]),
    b"REMOVE": lambda request_id, tokens: commands.RemoveTimetable(request_id, tokens[0]),
    b"RUN": lambda request_id, tokens: commands.RunTimetable(request_id, tokens[0]),
}
