"""DataFrames as files at any address, and back.

    a local path    Spark writes and reads
    a URI           tasks do by pyarrow, as they read logs: Spark itself knows these schemes only
                    with libraries of Java

    task: rows --> its own files, each there whole when it is closed --> their names
    driver: removes all other files below the directory, then writes _SUCCESS

At a URI a reader sees files of a write that has not ended; `_SUCCESS` comes last, and is removed
before anything is replaced.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from journeyman.errors import UsageError
from journeyman.spark.files import absolute, arrow_path, filesystem_of, is_uri, remote_of
from journeyman.spark.slots import slots_of
from journeyman.spark.source.options import arrow_schema

_SUCCESS: Final = "_SUCCESS"
_WRITTEN: Final = "file string"
Batches: TypeAlias = Iterator[pa.RecordBatch]
TaskWriter: TypeAlias = Callable[[str, Batches], Iterator[str]]  # a name, rows -> paths of files


def write_parquet(
    frame: DataFrame, path: str, *, overwrite: bool = False, by: Sequence[str] = ()
) -> None:
    """A directory of Parquet files; ``by`` these columns in directories of their own."""
    place = absolute(path)
    if not is_uri(place):
        mode = "overwrite" if overwrite else "errorifexists"
        writer = frame.write.mode(mode).option("compression", "zstd").partitionBy(*by)
        unless_there(path, partial(writer.parquet, path))
        return
    columns = arrow_schema(frame.schema)
    if not write_at(frame, place, partial(_parquet_part, place, columns, by), overwrite=overwrite):
        filesystem, inner = arrow_path(posixpath.join(place, "part-0.zstd.parquet"))
        pq.write_table(columns.empty_table(), inner, filesystem=filesystem)
    _finish(place)


def write_lines(lines: DataFrame, place: str, name: str, header: str, *, overwrite: bool) -> None:
    """The one column of a frame as lines of files at a URI; each file begins with the header."""
    write_at(lines, place, partial(_text_part, place, name, header), overwrite=overwrite)
    _finish(place)


def unless_there(path: str, write: Callable[[], None]) -> None:
    """Let Spark write; UsageError if there is something already."""
    try:
        write()
    except AnalysisException as error:
        if error.getCondition() != "PATH_ALREADY_EXISTS":
            raise
        raise _is_there(path) from None


def read_parquet(spark: SparkSession, path: str) -> DataFrame:
    """The rows of a directory of Parquet files, and what ``name=value`` directories say."""
    place = absolute(path)
    if not is_uri(place):
        return spark.read.parquet(path)
    found = _dataset(place)
    files = sorted(found.files)
    tasks = max(1, min(len(files), 4 * slots_of(spark)))
    numbers = spark.range(0, tasks, 1, tasks)
    schema = from_arrow_schema(found.schema)
    return numbers.mapInArrow(partial(_read_some, place, files, tasks), schema)


def _read_some(place: str, files: Sequence[str], tasks: int, numbers: Batches) -> Batches:
    schema = _dataset(place).schema
    for batch in numbers:
        for number in batch.column("id").to_pylist():
            yield from _dataset(place, files[number::tasks], schema).to_batches()


def _dataset(place: str, files: Sequence[str] | None = None, schema: Any = None) -> Any:
    import pyarrow.dataset as ds

    filesystem, inner = arrow_path(place)
    partitions: Any = ds.HivePartitioning.discover() if schema is None else None
    if schema is not None:
        partitions = ds.partitioning(schema=schema, flavor="hive")
    return ds.dataset(
        inner if files is None else list(files),
        schema=schema,
        filesystem=filesystem,
        format="parquet",
        partitioning=partitions,
        partition_base_dir=inner,
    )


def write_at(frame: DataFrame, place: str, write: TaskWriter, *, overwrite: bool) -> int:
    """How many files tasks have written at a URI; those that were there before are gone."""
    store = remote_of(place)
    before = store.sizes_below(place)
    if before and not overwrite:
        raise _is_there(place)
    if (done := posixpath.join(place, _SUCCESS)) in before:
        store.remove(done)
    rows = frame.mapInArrow(partial(_as_rows, write), _WRITTEN).collect()
    made = {row["file"] for row in rows}
    # Files of tasks that were tried again go too.
    for stray in store.sizes_below(place).keys() - made:
        store.remove(stray)
    return len(made)


def _finish(place: str) -> None:
    filesystem_of(place).create(posixpath.join(place, _SUCCESS)).close()


def _is_there(path: str) -> UsageError:
    return UsageError(f"{path} already exists: choose another --output, or give --force")


def _as_rows(write: TaskWriter, batches: Batches) -> Batches:
    context = TaskContext.get()
    number = 0 if context is None else context.partitionId()  # files are in the order of the rows
    names = list(write(f"{number:05d}-{secrets.token_hex(8)}", batches))
    yield pa.RecordBatch.from_pydict({"file": pa.array(names, pa.string())})


def _parquet_part(
    place: str, columns: pa.Schema, by: Sequence[str], token: str, batches: Batches
) -> Iterator[str]:
    import pyarrow.dataset as ds

    filesystem, inner = arrow_path(place)
    format_: Any = ds.ParquetFileFormat()
    directories = pa.schema([columns.field(name) for name in by])
    made: list[Any] = []
    ds.write_dataset(
        (batch.cast(columns) for batch in batches),
        inner,
        schema=columns,
        basename_template=f"part-{token}-{{i}}.zstd.parquet",
        filesystem=filesystem,
        format=format_,
        file_options=format_.make_write_options(compression="zstd"),
        partitioning=ds.partitioning(directories, flavor="hive"),
        existing_data_behavior="overwrite_or_ignore",
        file_visitor=made.append,
    )
    yield from (place + file.path.removeprefix(inner) for file in made)


def _text_part(place: str, name: str, header: str, token: str, batches: Batches) -> Iterator[str]:
    file = None
    for batch in batches:
        if file is None and batch.num_rows:
            path = posixpath.join(place, f"part-{token}.{name}")
            file = filesystem_of(path).create(path)
            file.write(header.encode())
        if file is not None:
            file.write("".join(f"{line}\n" for line in batch.column(0).to_pylist()).encode())
    if file is not None:
        file.close()
        yield file.path
