"""The rows of a log, read without Spark."""

from __future__ import annotations

from pathlib import Path

from journeyman.formats.framing import Entry
from journeyman.logs.damage import Damage, read_past_damage
from journeyman.spark.files import find_source_logs
from journeyman.spark.source.options import SourceOptions, base_schema
from journeyman.spark.source.pieces import SplitContext
from tests.support.columnar_twins import CHECKPOINT, JOURNAL, LEDGER, WORKQ, ZTICK
from tests.support.spark.pieces import is_end
from tests.support.spark.rows import Row, expected_row

CODECS = {"ztick": ZTICK.codec, "workq": WORKQ.codec, "ledger": LEDGER.codec}


def options_for(dialect: str, path: Path | str, **options: object) -> SourceOptions:
    return SourceOptions.parse(
        dialect, {"path": str(path), **{name: str(value) for name, value in options.items()}}
    )


def local_rows(dialect: str, path: Path, *, payloads: bool) -> list[Row]:
    """The same by the codecs alone."""
    found: list[Row] = []
    for log in find_source_logs(options_for(dialect, path)):
        for file in log.files:
            context = SplitContext(log.name, file.path, file.segment, file.queue, file.reader)
            codec = CODECS.get(dialect, JOURNAL.codec if file.reader is None else CHECKPOINT.codec)
            data = Path(file.path).read_bytes()
            for item in read_past_damage(codec, data, file=file.path):
                if isinstance(item, Entry):
                    found.append(expected_row(context, item, payloads=payloads))
                elif not is_end(item, file):
                    found.append(_damage_row(dialect, context, item, data))
    return found


def _damage_row(dialect: str, context: SplitContext, damage: Damage, data: bytes) -> Row:
    row = dict.fromkeys(base_schema(dialect).fieldNames())
    if dialect == "kestrel":
        row |= {"queue": context.queue, "reader": context.reader}
    return row | {
        "_log": context.log,
        "_file": context.file,
        "_segment": context.segment,
        "_offset": damage.offset,
        "_length": damage.length,
        "_position": context.segment * 2**44 + damage.offset,
        "kind": "damage",
        "_corrupt_record": data[damage.offset : damage.end][:65_536],
        "_damage": f"{damage.kind}: {damage.reason}",
    }
