"""Make the page "All columns" of the site from the comments that the columns have in Spark.

The site's hooks call it. docs/spark.md explains the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql.types import StructField

from journeyman.spark.replay import PLACE, STATE_TABLES
from journeyman.spark.source.options import DIALECT_COLUMNS, ENVELOPE, KINDS

HEAD = """# All columns

Generated from the source. [spark.md](spark.md) explains the tables; `DESCRIBE`
shows the same in Spark.
"""


def page() -> str:
    """Return the page as Markdown."""
    parts = [HEAD, "## Of every record\n", *_table(ENVELOPE)]
    for dialect, fields in DIALECT_COLUMNS.items():
        kinds = " ".join(f"`{kind}`" for kind in KINDS[dialect])
        parts += [f"\n## Records of {dialect}\n", f"Kinds: {kinds}.\n", *_table(fields)]
    parts += ["\n## Of every state table\n", *_table(PLACE)]
    for dialect, by_name in STATE_TABLES.items():
        for name, table in by_name.items():
            own = table.schema.fields[len(PLACE) :]
            parts += [f"\n## State of {dialect}: {name}\n", *_table(own)]
    return "\n".join(parts) + "\n"


def _table(fields: Iterable[StructField]) -> Iterator[str]:
    yield "| column | type | |"
    yield "|---|---|---|"
    for field in fields:
        comment = field.metadata.get("comment", "").replace("|", "\\|")
        yield f"| `{field.name}` | {field.dataType.simpleString()} | {comment} |"
