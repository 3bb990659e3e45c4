"""Write the tables of columns in docs/spark.md, from the comments that the columns have in Spark.

python scripts/spark_columns.py            write them
tests/spark/test_columns.py                fails if they are not what this would write
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark.sql.types import StructField

from journeyman.spark.replay import PLACE, STATE_TABLES
from journeyman.spark.source.options import DIALECT_COLUMNS, ENVELOPE, KINDS

PAGE = Path(__file__).parents[1] / "docs" / "spark.md"
BEGIN, END = "<!-- columns: written by scripts/spark_columns.py -->", "<!-- end of columns -->"


def tables() -> str:
    """All tables in Markdown."""
    parts = ["### Of every record\n", *_table(ENVELOPE)]
    for dialect, fields in DIALECT_COLUMNS.items():
        kinds = " ".join(f"`{kind}`" for kind in KINDS[dialect])
        parts += [f"\n### Records of {dialect}\n", f"Kinds: {kinds}.\n", *_table(fields)]
    parts += ["\n### Of every state table\n", *_table(PLACE)]
    for dialect, by_name in STATE_TABLES.items():
        for name, table in by_name.items():
            own = table.schema.fields[len(PLACE) :]
            parts += [f"\n### State of {dialect}: {name}\n", *_table(own)]
    return "\n".join(parts)


def _table(fields: Iterable[StructField]) -> Iterator[str]:
    yield "| column | type | |"
    yield "|---|---|---|"
    for field in fields:
        comment = field.metadata.get("comment", "").replace("|", "\\|")
        yield f"| `{field.name}` | {field.dataType.simpleString()} | {comment} |"


def page() -> str:
    """The page as it should be."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, behind = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{behind}"


if __name__ == "__main__":
    PAGE.write_text(page())
