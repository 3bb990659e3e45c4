"""A configuration file -> its values by section and key, each with its line.

A file is TOML. ztick reads its files line by line and takes some that are no TOML; those are read
here in the same way, with a note for each thing that TOML would refuse:

    level = info             a string without quotes
    path = "C:\\bin"          a string with backslashes that are no escapes
    a key given twice        the last one counts; so may a section be opened twice
    no equals sign           the line is skipped, as is a `[` that is never closed

In both, keys before the first section are ignored with a note, as ztick does, and comments may
follow a value. A quote or bracket that is never closed is an error in both: there is no telling
what was meant.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from journeyman.errors import UsageError

MAX_FILE_BYTES = 1024 * 1024

_HEADING = re.compile(r"\[([^\[\]]+)\]\s*(?:#.*)?")
_PLAIN_QUOTES = re.compile(r'"([^"]*)"\s*(?:#.*)?')
_QUOTED_PART = re.compile(r"""["']([^"'.]*)["']""")  # of a heading: [queue."a:b"]
_COMMENT = re.compile(r"\s#")
_NOT_BARE = re.compile(r"""["']|^[\[{#]|^$""")


@dataclass(frozen=True, slots=True)
class FoundValue:
    """A value and the line it stands on; None where the file gives it in an unusual way."""

    value: object
    line: int | None


@dataclass(frozen=True, slots=True)
class FileValues:
    sections: dict[str, dict[str, FoundValue]]
    heading_lines: dict[str, int]
    key_lines: dict[tuple[str, str], int]
    notes: tuple[str, ...]

    def line_of(self, path: Sequence[str]) -> int | None:
        """Where a key, or the heading of a table, stands that may lie in tables of tables."""
        *table, key = path
        line = self.key_lines.get((".".join(table), key))
        return self.heading_lines.get(".".join(path)) if line is None else line


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    section: str
    key: str
    value: str


def read_text_file(path: str, what: str | None = None) -> str:
    """A small UTF-8 file, whole; ``what`` names it if it cannot be opened, else its path does."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{what or path}: {reason}") from None
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: not UTF-8") from None


def read_values(text: str, file: str) -> FileValues:
    """The values of a file; ``file`` is its name for notes and errors."""
    try:
        document = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or a number of thousands of digits
        values = _read_lines(text, file)
        reason = str(error)[:1].lower() + str(error)[1:]
        note = f"{file}: not TOML ({reason}); read line by line, as ztick does"
        return replace(values, notes=(note, *values.notes))
    return _from_document(document, text, file)


# -- TOML ----------------------------------------------------------------------------------------


def _from_document(document: dict[str, object], text: str, file: str) -> FileValues:
    lines: dict[tuple[str, str], int] = {}
    headings: dict[str, int] = {}
    for each in _split(text):
        if isinstance(each, _Line):
            name = (each.section, each.key) if each.section else _dotted(each.key)
            lines.setdefault(name, each.number)
        elif each[1] is not None:
            headings.setdefault(each[1], each[0])
    sections: dict[str, dict[str, FoundValue]] = {}
    notes = []
    for section, table in document.items():
        if isinstance(table, dict):
            sections[section] = {
                key: FoundValue(value, lines.get((section, key))) for key, value in table.items()
            }
        elif isinstance(table, list) and all(isinstance(item, dict) for item in table):
            raise UsageError(f"{file}: [[{section}]] must be [{section}]")
        else:
            place = f"{file}:{lines[('', section)]}" if ("", section) in lines else file
            notes.append(f"{place}: {section} is in no section; ignored")
    return FileValues(sections, headings, lines, tuple(notes))


def _dotted(key: str) -> tuple[str, str]:
    section, _, rest = key.rpartition(".")
    return section, rest


# -- line by line --------------------------------------------------------------------------------


def _read_lines(text: str, file: str) -> FileValues:
    sections: dict[str, dict[str, FoundValue]] = {}
    headings: dict[str, int] = {}
    lines: dict[tuple[str, str], int] = {}
    notes = []
    for each in _split(text):
        if not isinstance(each, _Line):
            number, heading = each
            if heading is None:
                notes.append(f"{file}:{number}: neither a section nor key = value; skipped")
            else:
                headings.setdefault(heading, number)
                sections.setdefault(heading, {})
            continue
        place = f"{file}:{each.number}"
        if not each.section:
            notes.append(f"{place}: {each.key} is in no section; ignored")
            continue
        keys = sections[each.section]
        if (earlier := keys.get(each.key)) is not None:
            name = f"{each.section}.{each.key}"
            notes.append(f"{place}: {name} is given again; line {earlier.line} does not count")
        keys[each.key] = FoundValue(_value(each, place), each.number)
        lines[each.section, each.key] = each.number
    return FileValues(_nested(sections), headings, lines, tuple(notes))


def _nested(sections: dict[str, dict[str, FoundValue]]) -> dict[str, dict[str, FoundValue]]:
    """Sections as TOML has them: [a.b.c] is a table in a table of the section a."""
    outer: dict[str, dict[str, FoundValue]] = {}
    for heading, keys in sections.items():
        section, *path = heading.split(".")
        if not path or not all(path):
            outer.setdefault(heading, {}).update(keys)
            continue
        known = outer.setdefault(section, {})
        first = known.setdefault(path[0], FoundValue({}, None)).value
        table = first if isinstance(first, dict) else {}
        for name in path[1:]:
            inner = table.setdefault(name, {})
            table = inner if isinstance(inner, dict) else {}
        table.update({key: found.value for key, found in keys.items()})
    return outer


def _value(line: _Line, place: str) -> object:
    with suppress(ValueError):
        return tomllib.loads(f"value = {line.value}")["value"]
    if quoted := _PLAIN_QUOTES.fullmatch(line.value):
        return quoted[1]
    bare = _COMMENT.split(line.value, maxsplit=1)[0].rstrip()
    if _NOT_BARE.search(bare):
        raise UsageError(
            f"{place}: {line.section}.{line.key} = {line.value or 'nothing'}: expected a value "
            'as in TOML, such as "text", 5, true or ["-c"]'
        )
    return bare


def _split(text: str) -> Iterator[_Line | tuple[int, str | None]]:
    """The lines that are not blank or comment: keys, and (number, heading or None if neither)."""
    section = ""
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            heading = _HEADING.fullmatch(line)
            if heading:
                section = _QUOTED_PART.sub(r"\1", heading[1].strip())
            yield number, section if heading else None
            continue
        key, equals, value = line.partition("=")
        if equals:
            yield _Line(number, section, key.strip(), value.strip())
        else:
            yield number, None
