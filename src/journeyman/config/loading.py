"""Where settings come from: defaults, file, environment, command line; the later one counts.

    default  <  ztick.toml:12  <  JOURNEYMAN_LOG_LEVEL=debug  <  a command line option

What nobody said may depend on the rest: paths are below the data directory, and with a file a
service is open only if the file has its section (see ``_Layers.complete``).

``load`` gives the settings together with the origin of each; ``show`` writes them down as a file
that ``load`` reads back to the same settings.

Everything that cannot be is a UsageError of one line that names the place, the key, the value and
what is allowed. Things that are odd but harmless are notes, for the caller to log.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from journeyman.config.data_directory import PLACES, STORE_DIRECTORY
from journeyman.config.files import FoundValue, read_text_file, read_values
from journeyman.config.queue_limits import WrongKey
from journeyman.config.queue_settings import StorageEngine
from journeyman.config.settings import Setting, Settings, all_settings
from journeyman.errors import UsageError

DEFAULT_ORIGIN = "default"
COMMAND_LINE_ORIGIN = "command line"
DATA_ORIGIN = "below data.directory"

ZTICK_LOGFILE = "logfile"  # where ztick has its log unless its file says otherwise
_SERVICES_OF_SECTIONS = ("workq", "kestrel")  # ztick has neither

_WIDE = 60  # longer lines than this do not move the origins of all others
_VARIABLE_PREFIX = "JOURNEYMAN_"
_TABLE = {setting.name: setting for setting in all_settings()}
_SECTIONS = tuple(field.name for field in fields(Settings))


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings in effect, where each of them comes from, and what was odd on the way."""

    settings: Settings
    origins: Mapping[str, str]
    notes: tuple[str, ...]


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
    return Configuration(settings, MappingProxyType(layers.origins), tuple(layers.notes))


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
            rows.append((f"{setting.key} = {setting.kind.write(value)}", f"  # {origin}"))
    width = max(len(text) for text, origin in rows if origin and len(text) <= _WIDE)
    return "".join(f"{text.ljust(width) if origin else text}{origin}\n" for text, origin in rows)


class _Layers:
    """Values by name, with the origin of each; what is added later replaces."""

    def __init__(self) -> None:
        self.origins = dict.fromkeys(_TABLE, DEFAULT_ORIGIN)
        self.notes: list[str] = []
        self._values: dict[str, Any] = {}
        self._sections: set[str] = set()  # those of which something was said

    def settings(self) -> Settings:
        sections = {}
        for section in _SECTIONS:
            given = {
                setting.attribute: self._values[name]
                for name, setting in _TABLE.items()
                if setting.section == section and name in self._values
            }
            sections[section] = replace(getattr(Settings(), section), **given)
        return Settings(**sections)

    def add_file(self, path: str) -> None:
        values = read_values(read_text_file(path), path)
        self.notes += values.notes
        for section, keys in values.sections.items():
            if section not in _SECTIONS:
                place = _place(path, values.heading_lines.get(section))
                raise UsageError(
                    f"{place}: unknown section [{section}]{_meant(section, _SECTIONS)}; "
                    f"allowed are {', '.join(_SECTIONS)}"
                )
            self._sections.add(section)
            for key, found in keys.items():
                place = _place(path, values.line_of((section, key)))
                try:
                    self._add_found(section, key, found, place)
                except WrongKey as error:
                    place = _place(path, values.line_of((section, key, *error.path)))
                    raise _wrong_key(place, f"{section}.{key}", error) from None

    def complete(self, path: str | None) -> None:
        """What follows from the rest where nothing was said of it; ``path`` is the file, if any."""
        if path is not None:
            self._close_what_the_file_does_not_name(path)
        directory = self._values.get("data.directory")
        if directory is None:
            if path is not None:
                self._complete("database.logfile_path", ZTICK_LOGFILE, f"{path}, as in ztick")
            return
        for name, place in PLACES.items():
            self._complete(name, os.path.join(directory, place), DATA_ORIGIN)
        if self._values.get("storage.engine") is not StorageEngine.POSTGRES:
            self._complete("storage.path", os.path.join(directory, STORE_DIRECTORY), DATA_ORIGIN)

    def _close_what_the_file_does_not_name(self, path: str) -> None:
        for section in _SERVICES_OF_SECTIONS:
            if section not in self._sections:
                self._complete(f"{section}.enabled", False, f"{path} has no [{section}]")

    def _complete(self, name: str, value: Any, origin: str) -> None:
        if name not in self._values:
            self._put(_TABLE[name], value, origin)

    def _add_found(self, section: str, key: str, found: FoundValue, place: str) -> None:
        setting = _TABLE.get(f"{section}.{key}")
        if setting is None:
            raise _unknown_key(place, f"{section}.{key}", found.value)
        try:
            value = setting.kind.read(found.value)
        except WrongKey:
            raise
        except ValueError as error:
            raise _bad_value(place, setting, found.value, error) from None
        self._put(setting, value, place)

    def add_environment(self, environ: Mapping[str, str]) -> None:
        variables = {setting.variable: setting for setting in _TABLE.values()}
        for variable, text in environ.items():
            setting = variables.get(variable)
            if setting is not None:
                self._add_text(setting, text, f"environment {variable}")
            elif variable.startswith(tuple(f"{_VARIABLE_PREFIX}{s.upper()}_" for s in _SECTIONS)):
                # Not an error: platforms set variables of such names of their own accord.
                meant = _meant(variable, variables)
                self.notes.append(f"environment {variable}: no such setting{meant}; ignored")

    def add_options(self, options: Mapping[str, str]) -> None:
        for name, text in options.items():
            setting = _TABLE.get(name)
            if setting is None:
                raise _unknown_key(COMMAND_LINE_ORIGIN, name, text)
            self._add_text(setting, text, COMMAND_LINE_ORIGIN)

    def _add_text(self, setting: Setting, text: str, place: str) -> None:
        try:
            value = setting.kind.read_text(text)
        except WrongKey as error:
            raise _wrong_key(place, setting.name, error) from None
        except ValueError as error:
            raise _bad_value(place, setting, text, error) from None
        self._put(setting, value, place)

    def _put(self, setting: Setting, value: Any, origin: str) -> None:
        self._sections.add(setting.section)
        self._values[setting.name] = value
        self.origins[setting.name] = origin


def _check_together(settings: Settings, origins: Mapping[str, str]) -> None:
    """What one value alone cannot tell."""
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
    if not (os.path.isfile(shell.path) and os.access(shell.path, os.X_OK)):
        place = origins["shell.path"]
        raise UsageError(
            f"{place}: shell.path = {shell.path!r}: expected the path of an executable file"
        )


# -- wording -------------------------------------------------------------------------------------


def _place(path: str, line: int | None) -> str:
    return path if line is None else f"{path}:{line}"


def _unknown_key(place: str, name: str, value: object) -> UsageError:
    section = name.partition(".")[0]
    allowed = [setting.key for setting in _TABLE.values() if setting.section == section]
    where = f"[{section}] allows {', '.join(allowed)}" if allowed else f"no section [{section}]"
    meant = _meant(name, _TABLE)
    return UsageError(f"{place}: unknown key {name} = {_shown(value)}{meant}; {where}")


def _bad_value(place: str, setting: Setting, value: object, error: ValueError) -> UsageError:
    detail = f" ({error})" if str(error) else ""
    expected = setting.kind.allowed
    return UsageError(f"{place}: {setting.name} = {_shown(value)}: expected {expected}{detail}")


def _wrong_key(place: str, name: str, error: WrongKey) -> UsageError:
    where = ".".join((name, *error.path))
    return UsageError(f"{place}: {where} = {_shown(error.value)}: {error.problem}")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


def _meant(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.8)
    return f" (did you mean {close[0]}?)" if close else ""
