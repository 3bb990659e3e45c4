r"""Where settings come from: defaults, file, environment, command line; the later one counts.

    default  <  ztick.toml:12  <  JOURNEYMAN_LOG_LEVEL=debug  <  a command line option

A setting without a value may depend on others: paths are below the data directory, and a file with
only sections of ztick opens what ztick would (see ``_Layers.complete``).

``load`` gives the settings together with the origin of each; ``show`` writes them down as a file
that ``load`` reads back to the same settings.

Everything that cannot be is a UsageError of one line that names the place, the key, the value and
what is allowed. Things that are odd but harmless are notes, for the caller to log.

A configuration file -> its values by section and key, each with its line.

A file is TOML. ztick reads its files line by line and takes some that are not TOML; those are read
here in the same way, with a note for each thing that TOML would refuse:

    level = info             a string without quotes
    path = "C:\bin"          a string with backslashes that are not escapes
    a key given twice        the last one counts; so may a section be opened twice
    no equals sign           the line is skipped, as is a `[` that is never closed

In both, keys before the first section are ignored with a note, as ztick does, and comments may
follow a value. A quote or bracket that is never closed is an error in both: there is no telling
what was meant.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from journeyman.config import kinds
from journeyman.config.queue_settings import StorageEngine, WrongKey
from journeyman.config.settings import Setting, Settings, all_settings
from journeyman.data_directory import PLACES, STORE_DIRECTORY
from journeyman.disk import checked_address, is_database
from journeyman.errors import UsageError

MAX_FILE_BYTES = 1024 * 1024

_HEADING = re.compile(r"\[([^\[\]]+)\]\s*(?:#.*)?")
_PLAIN_QUOTES = re.compile(r'"([^"]*)"\s*(?:#.*)?')
_QUOTED_PART = re.compile(r"""["']([^"'.]*)["']""")  # a part of a heading: [queue."a:b"]
_COMMENT = re.compile(r"\s#")
_NOT_BARE = re.compile(r"""["']|^[\[{#]|^$""")


class FoundValue(Struct, frozen=True):
    """A value and the line it stands on; None where the file gives it in an unusual way."""

    value: object
    line: int | None


class FileValues(Struct, frozen=True):
    sections: dict[str, dict[str, FoundValue]]
    heading_lines: dict[str, int]
    key_lines: dict[tuple[str, str], int]
    notes: tuple[str, ...]

    def line_of(self, path: Sequence[str]) -> int | None:
        """Where a key, or the heading of a table, stands that may lie in tables of tables."""
        *table, key = path
        line = self.key_lines.get((".".join(table), key))
        return self.heading_lines.get(".".join(path)) if line is None else line


class _Line(Struct, frozen=True):
    number: int
    section: str
    key: str
    value: str


def read_secret(path: str | None, name: str) -> str:
    """The secret in the file that this setting names, without white space around it; else empty.
    Raises UsageError."""
    return "" if path is None else read_text_file(path, f"{name} = {path!r}").strip()


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
            notes.append(f"{place}: {name} is repeated; line {earlier.line} is ignored")
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


DEFAULT_ORIGIN = "default"
COMMAND_LINE_ORIGIN = "command line"
DATA_ORIGIN = "below data.directory"

ZTICK_LOGFILE = "logfile"  # where ztick has its log unless its file says otherwise
# The sections that ztick knows; it refuses a file with any other, so no such file is one of ztick.
ZTICK_SECTIONS = frozenset(("log", "controller", "http", "shell", "database", "telemetry"))
_SERVICES_OF_SECTIONS = ("http", "workq", "kestrel")  # ztick serves none of them unasked

# Settings of development versions, and what to set instead of them.
_FORMER = {
    "workq.persistence": 'jobs are kept in the command log: set workq.persistence = "log"; '
    "storage.engine gives them an index in a store",
    "database.persistence": "jobs and rules are kept in a log: set "
    'database.persistence = "logfile"',
    "storage.standby": "a standby needs its logs in PostgreSQL: set data.directory to the address "
    "of a database, and remove this key",
}
# Names of Overhop, whose engine is not here.
_OVERHOP_ENGINE, _OVERHOP_TABLE = "sled", "sled"
_WIDE = 60  # longer lines than this do not move the origins of all others
_VARIABLE_PREFIX = "JOURNEYMAN_"
_TABLE = {setting.name: setting for setting in all_settings()}
_OVERHOP_KEYS = ("storage.cache_capacity", "storage.mode")  # those of [storage.sled]
_OVERHOP_OPTIONS = {
    f"storage.{_OVERHOP_TABLE}.{name.partition('.')[2]}": _TABLE[name] for name in _OVERHOP_KEYS
}
_SECTIONS = Settings.__struct_fields__


class Configuration(Struct, frozen=True):
    """The settings in effect, where each of them comes from, and what was odd on the way."""

    settings: Settings
    origins: Mapping[str, str]
    notes: tuple[str, ...]
    remarks: tuple[str, ...] = ()  # facts that are worth knowing and no cause for worry


def load(
    path: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> Configuration:
    """The settings in effect.

    ``environ`` is the process's environment unless given; ``options`` are those of the command
    line, as ``{"database.framerate": "60"}``.
    """
    layers = _Layers()
    if path is not None:
        layers.add_file(path)
    layers.add_environment(os.environ if environ is None else environ)
    layers.add_options(options or {})
    layers.complete(path)
    settings = layers.settings()
    _check_together(settings, layers.origins)
    origins, notes = MappingProxyType(layers.origins), tuple(layers.notes)
    return Configuration(settings, origins, notes, tuple(layers.remarks))


def show(configuration: Configuration) -> str:
    """The settings in effect as a configuration file, with the origin of each as a comment."""
    rows: list[tuple[str, str]] = []
    section = ""
    for setting in all_settings():
        if setting.section != section:
            section = setting.section
            rows += [("", ""), (f"[{section}]", "")] if rows else [(f"[{section}]", "")]
        value = setting.value_in(configuration.settings)
        origin = configuration.origins[setting.name]
        if value is None:
            rows.append((f"# {setting.key} is not set", ""))
        else:
            rows.append((f"{setting.key} = {kinds.as_toml(value)}", f"  # {origin}"))
    width = max(len(text) for text, origin in rows if origin and len(text) <= _WIDE)
    return "".join(f"{text.ljust(width) if origin else text}{origin}\n" for text, origin in rows)


def sample() -> str:
    """A configuration file with every setting at its default, as a comment, and its meaning."""
    lines = [
        "# Settings of `journeyman serve -c FILE`. Each is shown with its default: remove the # to",
        "# change it. `journeyman config -c FILE` checks the file without starting anything. A",
        "# variable JOURNEYMAN_<SECTION>_<KEY> overrides the file.",
    ]
    section = ""
    for setting in all_settings():
        if setting.section != section:
            section = setting.section
            lines += ["", f"[{section}]"]
        lines += [f"# {setting.meaning}; {setting.allowed}"]
        value = "..." if setting.default is None else kinds.as_toml(setting.default)
        lines += [f"# {setting.key} = {value}"]
    return "\n".join(lines) + "\n"


class _Layers:
    """Values by name, with the origin of each; what is added later replaces."""

    def __init__(self) -> None:
        self.origins = dict.fromkeys(_TABLE, DEFAULT_ORIGIN)
        self.notes: list[str] = []
        self.remarks: list[str] = []
        self._values: dict[str, Any] = {}
        self._sections: set[str] = set()  # those of which something was said
        self._is_of_ztick = False  # there is a file, and ztick would read it

    def settings(self) -> Settings:
        settings = Settings()
        for name, value in self._values.items():
            setting = _TABLE[name]
            section = getattr(settings, setting.section)
            changed = replace(section, **{setting.attribute: value})
            settings = replace(settings, **{setting.section: changed})
        return settings

    def add_file(self, path: str) -> None:
        values = read_values(read_text_file(path), path)
        self.notes += values.notes
        self._is_of_ztick = ZTICK_SECTIONS.issuperset(values.sections)
        for section, keys in values.sections.items():
            if section not in _SECTIONS:
                place = _place(path, values.heading_lines.get(section))
                raise UsageError(
                    f"{place}: unknown section [{section}]{_suggestion(section, _SECTIONS)}; "
                    f"allowed are {', '.join(_SECTIONS)}"
                )
            self._sections.add(section)
            for key, found in keys.items():
                place = _place(path, values.line_of((section, key)))
                if (section, key) == ("storage", _OVERHOP_TABLE) and isinstance(found.value, dict):
                    self._add_overhop_table(found.value, path, values)
                    continue
                try:
                    self._add_value(section, key, found, place)
                except WrongKey as error:
                    place = _place(path, values.line_of((section, key, *error.path)))
                    raise _wrong_key(place, f"{section}.{key}", error) from None

    def _add_overhop_table(
        self, table: Mapping[str, object], path: str, values: FileValues
    ) -> None:
        """Keys of [storage.sled] are those of [storage]."""
        for key, value in table.items():
            line = values.line_of(("storage", _OVERHOP_TABLE, key))
            if f"storage.{key}" not in _OVERHOP_KEYS:
                allowed = ", ".join(name.partition(".")[2] for name in _OVERHOP_KEYS)
                raise UsageError(
                    f"{_place(path, line)}: unknown key storage.{_OVERHOP_TABLE}.{key}; "
                    f"[storage.{_OVERHOP_TABLE}] allows {allowed}"
                )
            self._add_value("storage", key, FoundValue(value, line), _place(path, line))

    def complete(self, path: str | None) -> None:
        """Set what follows from other settings and was not set itself; ``path`` is the file."""
        if self._is_of_ztick:
            for section in _SERVICES_OF_SECTIONS:
                if section not in self._sections:
                    reason = f"{path} has only sections of ztick, and no [{section}]"
                    self._complete(f"{section}.enabled", False, reason)
        directory = self._values.get("data.directory")
        if directory is None:
            if self._is_of_ztick:
                self._complete("database.logfile_path", ZTICK_LOGFILE, f"{path}, as in ztick")
            if "database.logfile_path" in self._values and "ledger" not in self._sections:
                self._complete("ledger.enabled", False, "no data.directory, no [ledger]")
            if "database.logfile_path" in self._values and "series" not in self._sections:
                self._complete("series.enabled", False, "no data.directory, no [series]")
            return
        if is_database(directory):
            directory = self._values["data.directory"] = checked_address(directory)
        for name, place in PLACES.items():
            self._complete(name, os.path.join(directory, place), DATA_ORIGIN)
        has_store = self._values.get("storage.engine") is not StorageEngine.POSTGRES
        if has_store and not is_database(directory):
            self._complete("storage.path", os.path.join(directory, STORE_DIRECTORY), DATA_ORIGIN)

    def _complete(self, name: str, value: Any, origin: str) -> None:
        if name not in self._values:
            self._put(_TABLE[name], value, origin)

    def _add_value(self, section: str, key: str, entry: FoundValue, place: str) -> None:
        setting = _TABLE.get(f"{section}.{key}")
        if setting is None:
            raise _unknown_key(place, f"{section}.{key}", entry.value)
        try:
            value = kinds.read_setting(setting.kind, self._translated(setting, entry.value, place))
        except WrongKey:
            raise
        except ValueError as error:
            raise _bad_value(place, setting, entry.value, error) from None
        self._put(setting, value, place)

    def add_environment(self, environ: Mapping[str, str]) -> None:
        variables = {setting.variable: setting for setting in _TABLE.values()}
        for name, known in _OVERHOP_OPTIONS.items():
            variables[_VARIABLE_PREFIX + name.upper().replace(".", "_")] = known
        for variable, text in environ.items():
            setting = variables.get(variable)
            if setting is not None:
                self._add_text(setting, text, f"environment {variable}")
            elif variable.startswith(tuple(f"{_VARIABLE_PREFIX}{s.upper()}_" for s in _SECTIONS)):
                # Not an error: platforms set variables of such names of their own accord.
                meant = _suggestion(variable, variables)
                self.notes.append(f"environment {variable}: no such setting{meant}; ignored")

    def add_options(self, options: Mapping[str, str]) -> None:
        for name, text in options.items():
            setting = _TABLE.get(name) or _OVERHOP_OPTIONS.get(name)
            if setting is None:
                raise _unknown_key(COMMAND_LINE_ORIGIN, name, text)
            self._add_text(setting, text, COMMAND_LINE_ORIGIN)

    def _add_text(self, setting: Setting, text: str, place: str) -> None:
        try:
            value = kinds.read_text(setting.kind, str(self._translated(setting, text, place)))
        except WrongKey as error:
            raise _wrong_key(place, setting.name, error) from None
        except ValueError as error:
            raise _bad_value(place, setting, text, error) from None
        self._put(setting, value, place)

    def _translated(self, setting: Setting, value: object, place: str) -> object:
        """Overhop's engine is not here; another one keeps the same keys."""
        if setting.name != "storage.engine" or value != _OVERHOP_ENGINE:
            return value
        engine = StorageEngine.ROCKSDB.value
        self.remarks.append(f'{place}: storage.engine = "{value}": served by {engine}')
        return engine

    def _put(self, setting: Setting, value: Any, origin: str) -> None:
        self._sections.add(setting.section)
        self._values[setting.name] = value
        self.origins[setting.name] = origin


def _check_together(settings: Settings, origins: Mapping[str, str]) -> None:
    """Check settings that depend on each other."""
    controller, telemetry, shell = settings.controller, settings.telemetry, settings.shell
    for given, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        value = getattr(controller, given)
        if value is not None and getattr(controller, other) is None:
            place = origins[f"controller.{given}"]
            raise UsageError(
                f"{place}: controller.{given} = {value!r}: controller.{other} must be set as well"
            )
    if telemetry.enabled and telemetry.endpoint is None:
        place = origins["telemetry.enabled"]
        raise UsageError(
            f"{place}: telemetry.enabled = true: telemetry.endpoint must be set as well"
        )
    if settings.access.proxy_protocol and not settings.access.trusted_proxies:
        place = origins["access.proxy_protocol"]
        raise UsageError(
            f"{place}: access.proxy_protocol = true: name the proxies in access.trusted_proxies"
        )
    if not (os.path.isfile(shell.path) and os.access(shell.path, os.X_OK)):
        place = origins["shell.path"]
        raise UsageError(
            f"{place}: shell.path = {shell.path!r}: expected the path of an executable file"
        )


# -- wording -------------------------------------------------------------------------------------


def _place(path: str, line: int | None) -> str:
    return path if line is None else f"{path}:{line}"


def _unknown_key(place: str, name: str, value: object) -> UsageError:
    if name in _FORMER:
        return UsageError(f"{place}: {name} = {_as_text(value)}: {_FORMER[name]}")
    section = name.partition(".")[0]
    allowed = [setting.key for setting in _TABLE.values() if setting.section == section]
    where = f"[{section}] allows {', '.join(allowed)}" if allowed else f"no section [{section}]"
    meant = _suggestion(name, _TABLE)
    return UsageError(f"{place}: unknown key {name} = {_as_text(value)}{meant}; {where}")


def _bad_value(place: str, setting: Setting, value: object, error: ValueError) -> UsageError:
    if value == "storage" and setting.name in _FORMER:
        return UsageError(f"{place}: {setting.name} = {_as_text(value)}: {_FORMER[setting.name]}")
    detail = f" ({error})" if str(error) else ""
    expected = setting.allowed
    return UsageError(f"{place}: {setting.name} = {_as_text(value)}: expected {expected}{detail}")


def _wrong_key(place: str, name: str, error: WrongKey) -> UsageError:
    where = ".".join((name, *error.path))
    return UsageError(f"{place}: {where} = {_as_text(error.value)}: {error.problem}")


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


def _suggestion(word: str, candidates: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.8)
    return f" (did you mean {close[0]}?)" if close else ""
