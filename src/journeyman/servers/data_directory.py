"""The data directory at a start: made if something will be kept in it, and said where it is.

    a service is on and its path is below the directory    the directory is made
    nothing is to be kept there                            it is not made, not even looked at

A working directory that cannot be written to is no obstacle unless something shall be kept in it.
What an earlier version kept elsewhere by default is named, so that nobody takes an empty schedule
for a lost one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from journeyman.config import Configuration, Persistence, Settings, WorkqPersistence
from journeyman.config.loading import DEFAULT_ORIGIN
from journeyman.disk import Disk
from journeyman.errors import LogError
from journeyman.servers.core.server_log import ServerLog

# Where earlier versions kept things by default, by the setting that says where they are now.
_FORMER_PLACES = {
    "database.logfile_path": ("logfile", "--log logfile"),
    "kestrel.queue_path": ("queues", "--queue-path queues"),
}


def prepare(configuration: Configuration, disk: Disk, messages: ServerLog) -> None:
    """Make the directory if it is needed. Raises LogError, in one line, if that cannot be done."""
    settings = configuration.settings
    directory = settings.data.directory
    for section, service in (("workq", "the work queue"), ("kestrel", "the fan-out queues")):
        origin = configuration.origins[f"{section}.enabled"]
        if not getattr(settings, section).enabled:
            messages.info(f"{service}: off", because=f"{section}.enabled = false ({origin})")
    kept = dict(_kept(settings))
    if not any(_is_below(path, directory) for path in kept.values()):
        return
    for name, path in kept.items():
        if configuration.origins[name] == DEFAULT_ORIGIN:
            _name_the_former_place(name, path, disk, messages)
    try:
        disk.make_dirs(directory)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise LogError(
            directory,
            f"cannot make the data directory: {reason}; name another one with --data DIR",
        ) from None
    messages.info("data directory", path=os.path.abspath(directory))


def _kept(settings: Settings) -> Iterator[tuple[str, str]]:
    """The settings that name what the open services write to, and the paths."""
    if settings.database.persistence is Persistence.LOGFILE:
        yield "database.logfile_path", settings.database.logfile_path
    if settings.workq.enabled and settings.workq.persistence is WorkqPersistence.LOG:
        yield "workq.cmdlog_path", settings.workq.cmdlog_path
    if settings.workq.enabled and settings.workq.persistence is WorkqPersistence.STORAGE:
        yield "storage.path", settings.storage.path
    if settings.kestrel.enabled:
        yield "kestrel.queue_path", settings.kestrel.queue_path


def _is_below(path: str, directory: str) -> bool:
    above = os.path.abspath(directory)
    return os.path.commonpath([os.path.abspath(path), above]) == above


def _name_the_former_place(name: str, path: str, disk: Disk, messages: ServerLog) -> None:
    former, option = _FORMER_PLACES.get(name, ("", ""))
    if former and disk.exists(former) and not disk.exists(path):
        messages.warn(
            f"./{former} is there and is not read: an earlier version kept its data there; "
            f"start with {option} to use it, or move it to {path}"
        )
