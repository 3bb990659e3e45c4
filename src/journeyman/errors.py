"""Every error this package raises, in one tree.

    JourneymanError
    ├── FormatError            bytes that are not what they should be; carries offset and reason
    │   ├── IncompleteEntry    the bytes end inside an entry (a torn tail is not corruption)
    │   ├── UnknownEntryType   a type or command byte that the format does not have
    │   ├── StringOverflow     a string or block runs past the end of its entry
    │   ├── InvalidData        well-framed, but a field holds what it must not
    │   ├── EntryTooLarge      a declared size over the format's limit
    │   ├── ChecksumMismatch   the CRC does not fit
    │   └── BadHeader          the file does not begin as this format begins
    ├── EncodeError            a record that cannot be written; nothing was written
    ├── LogError               a log on disk; carries its path
    │   ├── LogLocked          another process writes this log
    │   ├── LogPoisoned        a sync failed; nothing more may be written
    │   ├── LogFull            the disk is full; the append was undone
    │   └── LogClosed          the log was closed
    ├── StorageError           a store of job records; carries where it is
    │   ├── StorageLocked      another process has it open
    │   ├── StorageClosed      the store was closed
    │   ├── StorageFull        no room on the disk; nothing was changed
    │   ├── StorageUnavailable the database cannot be reached; nothing was changed
    │   └── UnreadableRecord   the value of a key is not a record; carries the key
    ├── SnapshotGivenUp        a list is not shown to its end: it kept too much in memory
    ├── TimetableError         a timetable that makes no sense; carries its field
    └── UsageError             the command line or a setting asks for something impossible

Incomplete, corrupt and end are three different things: the end is a value (``None`` or an
``Ending``), an incomplete entry is ``IncompleteEntry``, and every other ``FormatError`` is
corruption.
"""

from __future__ import annotations


class JourneymanError(Exception):
    """Base class of all errors that this package raises on purpose."""


class FormatError(JourneymanError):
    """Bytes that are not what they should be.

    ``offset`` is where the entry begins, counted from the start of the buffer (or stream) that
    was being decoded; ``reason`` is one short phrase a person understands.
    """

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.reason} at offset {self.offset}"

    def moved(self, by: int) -> FormatError:
        """Return the same error, its offset counted from ``by`` bytes earlier."""
        return type(self)(self.reason, self.offset + by)


class IncompleteEntry(FormatError):
    """The bytes end inside an entry. ``needed`` is how many bytes the entry has at the least."""

    def __init__(self, reason: str, offset: int, needed: int = 0) -> None:
        super().__init__(reason, offset)
        self.needed = needed

    def moved(self, by: int) -> IncompleteEntry:
        return IncompleteEntry(self.reason, self.offset + by, self.needed)


class UnknownEntryType(FormatError):
    """A type or command byte that the format does not have."""


class StringOverflow(FormatError):
    """A string or block runs past the end of its entry."""


class InvalidData(FormatError):
    """Well-framed, but a field holds what it must not."""


class EntryTooLarge(FormatError):
    """A declared size over the format's limit."""


class ChecksumMismatch(FormatError):
    """The CRC does not fit the bytes."""


class BadHeader(FormatError):
    """The file does not begin as this format begins."""


class EncodeError(JourneymanError):
    """A record that cannot be written. Raised before a single byte leaves."""


class LogError(JourneymanError):
    """Something about a log on disk that someone must act on."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class LogLocked(LogError):
    """Another process writes this log."""


class LogPoisoned(LogError):
    """A sync failed, so what is on disk is unknown; nothing more may be written."""


class LogFull(LogError):
    """No room on the disk. The append was undone; try again when there is room."""


class LogClosed(LogError):
    """The log was closed before this append became durable."""


class StorageError(JourneymanError):
    """Something about a store that someone must act on. ``place`` is its path or address."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(place, reason)
        self.place = place
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class StorageLocked(StorageError):
    """Another process has the store open, and the engine lets one in at a time."""


class StorageClosed(StorageError):
    """The store was closed."""


class StorageFull(StorageError):
    """No room on the disk. Nothing was changed; try again when there is room."""


class StorageUnavailable(StorageError):
    """The database cannot be reached. Nothing was changed; try again when it is back."""


class UnreadableRecord(StorageError):
    """The value of ``key`` is not a record. It can be removed, or written again."""

    def __init__(self, place: str, key: bytes, reason: str) -> None:
        super().__init__(place, f"{key.decode('utf-8', 'backslashreplace')}: {reason}")
        self.key = key


class UsageError(JourneymanError):
    """The command line or a setting asks for something impossible."""


class SnapshotGivenUp(JourneymanError):
    """A list is not shown to its end: what it kept in memory was needed."""


class TimetableError(JourneymanError):
    """A timetable that makes no sense: which field, what is wrong, what is allowed."""

    def __init__(self, field: str, problem: str, allowed: str) -> None:
        super().__init__(field, problem, allowed)
        self.field = field
        self.problem = problem
        self.allowed = allowed

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}: expected {self.allowed}"
