"""A DataFrame as an answer: lines of text for stdout, files that Spark writes, or its plan.

    table     columns lined up, for people
    csv       a header, then a row a line
    json      one object a line
    parquet   files only; zstd

Spark turns the values into text, on the executors; the driver holds a batch of rows at a time,
never the whole answer. In JSON and CSV bytes are base64; in a table they are shown as text if they
are UTF-8, else as hexadecimal digits. Moments are in UTC.
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType, VariantType

from journeyman.spark.tables import write_lines, write_parquet

_MEASURED_ROWS = 1000  # rows whose widths decide how wide the columns of a table are
_WIDEST = 120  # characters; a longer cell is cut in a table
_MOMENT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
_NESTED = (ArrayType, MapType, StructType, VariantType)


def answer_lines(frame: DataFrame, format_: str) -> Iterator[str]:
    """The answer as lines of text, the first of them the header (not in JSON)."""
    if format_ == "json":
        return _json_lines(frame)
    rows = _text_rows(frame, for_people=format_ == "table")
    return _table_lines(frame.columns, rows) if format_ == "table" else _csv_lines(frame, rows)


def write_answer(frame: DataFrame, path: str, format_: str, *, overwrite: bool = False) -> None:
    """Write the answer as a directory of files, all of them or none."""
    if format_ == "parquet":
        write_parquet(frame, path, overwrite=overwrite)
        return
    if format_ == "json":
        write_lines(_as_json(frame), path, format_, "", overwrite=overwrite)
        return
    lines = _as_texts(frame, for_people=False).select(F.to_csv(F.struct("*")))
    write_lines(lines, path, format_, f"{_csv_line(frame.columns)}\n", overwrite=overwrite)


def first_rows(frame: DataFrame, columns: Sequence[str], limit: int) -> tuple[DataFrame, int]:
    """The first rows in log order, held in the driver, and the number of all."""
    counting = Observation()
    counted_rows = frame.observe(counting, F.count(F.lit(1)).alias("rows"))
    some = counted_rows.orderBy("_log", "_position").limit(max(limit, 1)).select(*columns)
    held = frame.sparkSession.createDataFrame(some.collect(), some.schema)
    return held, int(counting.get["rows"])


def with_table_name(frame: DataFrame, table: str) -> DataFrame:
    """The rows with the name of their table in front."""
    return frame.select(F.lit(table).alias("table"), "*")


def plan_of(frame: DataFrame) -> str:
    """Spark's formatted physical plan. Nothing of the plan is executed."""
    text = io.StringIO()
    # explain() prints, in every kind of session; the plan is not to be had as a value.
    with contextlib.redirect_stdout(text):
        frame.explain("formatted")
    return text.getvalue().strip()


def _json_lines(frame: DataFrame) -> Iterator[str]:
    return (row[0] for row in _as_json(frame).toLocalIterator(prefetchPartitions=True))


def _as_json(frame: DataFrame) -> DataFrame:
    options = {"ignoreNullFields": "false", "timestampFormat": _MOMENT}
    return frame.select(F.to_json(F.struct("*"), options).alias("line"))


def _text_rows(frame: DataFrame, *, for_people: bool) -> Iterator[Sequence[str | None]]:
    return iter(_as_texts(frame, for_people).toLocalIterator(prefetchPartitions=True))


def _as_texts(frame: DataFrame, for_people: bool) -> DataFrame:
    """Every column as a string. They get numbers for names meanwhile: two may have one name."""
    numbered = frame.toDF(*map(str, range(len(frame.columns))))
    return numbered.select(
        *(
            _as_text(numbered[str(number)], field.dataType, for_people).alias(field.name)
            for number, field in enumerate(frame.schema)
        )
    )


def _as_text(column: Column, type_: DataType, for_people: bool) -> Column:
    if isinstance(type_, _NESTED):
        return F.to_json(column)
    if isinstance(type_, BinaryType):
        if not for_people:
            return F.base64(column)
        return F.when(F.is_valid_utf8(column.cast("string")), column.cast("string")).otherwise(
            F.lower(F.hex(column))
        )
    return column.cast("string")


def _csv_lines(frame: DataFrame, rows: Iterator[Sequence[str | None]]) -> Iterator[str]:
    return map(_csv_line, chain([frame.columns], rows))


def _csv_line(row: Sequence[str | None]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow(row)
    return buffer.getvalue()


def _table_lines(names: Sequence[str], rows: Iterator[Sequence[str | None]]) -> Iterator[str]:
    first = [_cells(row) for row in islice(rows, _MEASURED_ROWS)]
    widths = [max(map(len, column)) for column in zip(names, *first, strict=True)]
    yield _table_line(names, widths)
    yield "  ".join("-" * width for width in widths)
    for cells in chain(first, map(_cells, rows)):
        yield _table_line(cells, widths)


def _cells(row: Sequence[str | None]) -> list[str]:
    return [_cell(value) for value in row]


def _cell(value: str | None) -> str:
    if value is None:
        return "null"
    text = value if value.isprintable() else "".join(map(_printable, value))
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


def _printable(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def _table_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
