"""TIMETABLE on a line: words <-> fields of a timetable, commands, and the lines of the replies.

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

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from journeyman.errors import TimetableError
from journeyman.formats.ztick import Runner
from journeyman.protocols.ztick import commands
from journeyman.protocols.ztick.rules import read_runner
from journeyman.timetables import Timetable
from journeyman.timetables.timetable import FIELDS, KINDS, read_time
from journeyman.timetables.zones import check_is_iana, zone_of

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
    if not timetable.runner:
        return timetable, None
    runner = read_runner(timetable.runner)
    if isinstance(runner, str):
        raise TimetableError("runner", runner, "the words of a runner, as in RULE SET")
    return timetable, runner


def fields_of(words: Sequence[str]) -> dict[str, Any]:
    """The fields that these words name. Raises TimetableError; the values are not checked."""
    if len(words) < 2 or words[0] not in KINDS:
        given = words[0] if words else ""
        problem = f"it begins with {given[:40]!r}" if given else "it is empty"
        raise TimetableError("timetable", problem, f"{_USAGE}; kind is {', '.join(KINDS)}")
    fields: dict[str, Any] = {words[0]: words[1]}
    for place, word in enumerate(words[2:], 2):
        if word == RUN_WORD:
            fields["runner"] = list(words[place + 1 :])
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
    words = [kind, _text(fields[kind])]
    for name, value in fields.items():
        if name not in (kind, "runner"):
            words.append(f"{name}={_text(value)}")
    if "runner" in fields:
        words += [RUN_WORD, *fields["runner"]]
    return words


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


# -- commands; tokens[0] is the request id, tokens[1] TIMETABLE, tokens[2] what to do --------------


def read_command(tokens: list[bytes]) -> commands.Event | None:
    """None: an unknown word, which is passed over in silence."""
    read = _READERS.get(tokens[2]) if len(tokens) > 2 else None
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


def _read_set(request_id: bytes, words: list[str]) -> commands.Event:
    identifier = words[0]
    return commands.SetTimetable(request_id, identifier, *read_timetable(fields_of(words[1:])))


def _read_list(request_id: bytes, words: list[str]) -> commands.Event:
    return commands.ListTimetables(request_id, words[0] if words else "")


def _read_next(request_id: bytes, words: list[str]) -> commands.Event:
    identifier, *rest = words[0], *words[1:2]
    count = rest[0] if rest else str(DEFAULT_FIRINGS)
    if not count.isascii() or not count.isdigit() or not 1 <= int(count[:9]) <= MAX_FIRINGS:
        allowed = f"a whole number from 1 to {MAX_FIRINGS}"
        raise TimetableError("count", f"{count[:40]!r} is not possible", allowed)
    return commands.NextOfTimetable(request_id, identifier, int(count))


def _read_backfill(request_id: bytes, words: list[str]) -> commands.Event:
    identifier = words[0]
    if len(words) < 3:
        missing = "from" if len(words) == 1 else "until"
        return _refused(request_id, f"missing required argument: {missing}")
    if words[3:4] not in ([], [_PREVIEW]):
        raise TimetableError("backfill", f"the word {words[3][:40]!r} is not known", _PREVIEW)
    utc = zone_of("UTC")
    from_s, until_s = read_time(words[1], utc, "from"), read_time(words[2], utc, "until")
    if from_s >= until_s:
        raise TimetableError("until", "it is not after from", "a later time")
    return commands.BackfillTimetable(request_id, identifier, from_s, until_s, len(words) > 3)


_READERS: dict[bytes, Callable[[bytes, list[str]], commands.Event]] = {
    b"SET": _read_set,
    b"LIST": _read_list,
    b"NEXT": _read_next,
    b"BACKFILL": _read_backfill,
    b"GET": lambda request_id, words: commands.GetTimetable(request_id, words[0]),
    b"PAUSE": lambda request_id, words: commands.PauseTimetable(request_id, words[0]),
    b"RESUME": lambda request_id, words: commands.ResumeTimetable(request_id, words[0]),
    b"REMOVE": lambda request_id, words: commands.RemoveTimetable(request_id, words[0]),
    b"RUN": lambda request_id, words: commands.RunTimetable(request_id, words[0]),
}
