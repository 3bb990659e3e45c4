"""The options of the runs of a timetable or a rule: fields of text, checked.

    on_failure    the words of what reports a failure: ``mail`` and addresses, or any runner
    timeout       the longest run of a program
    directory     where a program runs
    environment   variables that a program gets: NAME=value
    user          as whom a program runs

The last four are for programs. ``RunOptions.read`` takes the fields as values of JSON or as text,
in which a list is written as words with the quotes of a shell; ``fields`` gives them back without
the defaults.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from journeyman.errors import TimetableError
from journeyman.timetables.durations import duration_text, read_duration

MAX_TIMEOUT_S = 30 * 86_400
PROGRAM_OPTIONS: Final = ("timeout", "directory", "environment", "user")
OPTION_FIELDS: Final = ("on_failure", *PROGRAM_OPTIONS)
WORD_LISTS: Final = ("on_failure", "environment")

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=[^\0]*", re.DOTALL)
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """See the module's docstring. ``read`` checks; the constructor does not."""

    on_failure: tuple[str, ...] = ()
    timeout_s: int = 0  # 0: as the settings say
    directory: str = ""
    environment: tuple[str, ...] = ()
    user: str = ""

    @classmethod
    def read(cls, fields: Mapping[str, object]) -> RunOptions:
        """Raises TimetableError, which names the field and says what is allowed."""
        unknown = [name for name in fields if name not in OPTION_FIELDS]
        if unknown:
            allowed = ", ".join(OPTION_FIELDS)
            raise TimetableError(str(unknown[0])[:40], "there is no such option", allowed)
        return cls(**{_ATTRIBUTES.get(name, name): _read(name, fields[name]) for name in fields})

    def fields(self) -> dict[str, Any]:
        """Values of JSON; what is as by default is left out."""
        values = {
            "on_failure": list(self.on_failure),
            "timeout": duration_text(self.timeout_s) if self.timeout_s else "",
            "directory": self.directory,
            "environment": list(self.environment),
            "user": self.user,
        }
        return {name: value for name, value in values.items() if value}

    @property
    def needs_program(self) -> str:
        """The first option that only a program can have; empty: none."""
        return next((name for name in PROGRAM_OPTIONS if name in self.fields()), "")


NO_OPTIONS = RunOptions()
_ATTRIBUTES = {"timeout": "timeout_s"}


def _read(name: str, value: object) -> Any:
    if name in WORD_LISTS:
        words = read_words(name, value)
        if name == "environment" and not all(map(_VARIABLE.fullmatch, words)):
            raise TimetableError(name, "a word is not a variable", "NAME=value and no NUL byte")
        return words
    if name == "timeout":
        return read_duration(value, name, 1, MAX_TIMEOUT_S)
    if not isinstance(value, str):
        raise TimetableError(name, "it is not text", "text")
    if name == "directory" and not (value.startswith("/") and "\0" not in value):
        raise TimetableError(name, "it is not an absolute path", "a path that begins with /")
    if name == "user" and not _USER.fullmatch(value):
        raise TimetableError(name, "it is not the name of a user", "lower-case letters and digits")
    return value


def read_words(name: str, value: object) -> tuple[str, ...]:
    """A list of words: of JSON, or text with the quotes of a shell. Raises TimetableError."""
    allowed = "words such as mail ops@example.com" if name == "on_failure" else "words"
    try:
        words = tuple(shlex.split(value)) if isinstance(value, str) else value
    except ValueError as error:
        raise TimetableError(name, str(error).lower(), allowed) from None
    if (
        not isinstance(words, list | tuple)
        or not words
        or not all(isinstance(word, str) for word in words)
    ):
        raise TimetableError(name, "it is not a list of words", allowed)
    try:
        "".join(words).encode()
    except UnicodeEncodeError:  # JSON can say what UTF-8 cannot
        raise TimetableError(name, "a word is not valid Unicode", "text") from None
    return tuple(words)


def option_text(value: Any) -> str:
    """An option as one word of text, which ``read`` reads back."""
    return shlex.join(value) if isinstance(value, list | tuple) else str(value)
