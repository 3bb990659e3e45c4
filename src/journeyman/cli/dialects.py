"""The dialects a log can be in, and which codec reads which of its files."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any

import click

from journeyman.formats.framing import Codec

ZTICK = "ztick"
WORKQ = "workq"
KESTREL = "kestrel"
DIALECTS = (ZTICK, WORKQ, KESTREL)

dialect_option = click.option(
    "--dialect", type=click.Choice(DIALECTS), help="Do not guess what kind of log it is."
)


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of a log. ``reader`` names the reader whose checkpoint it is (kestrel only)."""

    dialect: str
    path: str
    reader: str | None = None

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    @property
    def codec(self) -> Codec[Any]:
        if self.dialect == ZTICK:
            from journeyman.formats import ztick

            return ztick.CODEC
        if self.dialect == WORKQ:
            from journeyman.formats import workq

            return workq.CODEC
        from journeyman.formats import kestrel

        return kestrel.WRITER if self.reader is None else kestrel.READER


@dataclass(frozen=True, slots=True)
class Log:
    """One log: the files of it that were asked for, in the order they are read.

    ``where`` is the directory of a workq log or kestrel queue, and the active file of a ztick
    log. ``whole`` says that all of the log was asked for, with the files it may yet get, and not
    single files of it. ``queue`` is the kestrel queue.
    """

    dialect: str
    where: str
    files: tuple[LogFile, ...]
    whole: bool
    queue: str | None = None

    @property
    def segments(self) -> tuple[LogFile, ...]:
        return tuple(file for file in self.files if file.reader is None)

    @property
    def readers(self) -> tuple[LogFile, ...]:
        return tuple(file for file in self.files if file.reader is not None)

    @property
    def title(self) -> str:
        """What the log is called in reports."""
        return self.where if self.queue is None else f"{self.where} (queue {self.queue})"
