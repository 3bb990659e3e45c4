"""The kestrel journal: writer files hold the items of a queue, reader files one checkpoint each."""

from journeyman.formats.kestrel.codec import (
    MAX_DATA_BYTES,
    READER,
    READER_MAGIC,
    WRITER,
    WRITER_MAGIC,
    ItemPut,
    ReadDone,
    ReadHead,
    Record,
    UnknownCommand,
)

__all__ = [
    "MAX_DATA_BYTES",
    "READER",
    "READER_MAGIC",
    "WRITER",
    "WRITER_MAGIC",
    "ItemPut",
    "ReadDone",
    "ReadHead",
    "Record",
    "UnknownCommand",
]
