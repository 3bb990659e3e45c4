"""Parts of a file whose begins were guessed, and the proof that they were right.

    part 0   |=============|                         began 0,    reached 1007
    part 1               ..|===============|         began 1007, reached 2030
    part 2                               ..|======|  began 2030

Who walks to the begin of a part reads all in front of it, which with many parts takes longer than
what is done with them. A place behind which many good entries follow is nearly always a boundary;
but a payload may quote a log, so that is a guess. It was right if the part in front of it, read
from a boundary, ended just there: the first part begins with the file, so one after the other each
begin is proved by the part before it. Nothing is published until that was compared, and if two
parts do not meet, all is read again with every begin walked to.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, pairwise

import pyarrow as pa

from journeyman.spark.source.schemas import PACKET_SCHEMA, SEAM_KIND, arrow_schema
from journeyman.spark.source.splits import Seam, SplitContext


class PartsDoNotMeet(Exception):
    """A begin was guessed wrong: what was made of the parts is good for nothing."""


def seam_row(context: SplitContext, seam: Seam) -> pa.RecordBatch:
    """A row of PACKET_SCHEMA that tells of it."""
    row = {
        "_log": context.log,
        "_file": context.file,
        "_offset": seam.began,
        "_position": seam.began,
        "kind": SEAM_KIND,
        "table": SEAM_KIND,
        "bucket": 0,
        "reached": seam.reached,
    }
    return pa.RecordBatch.from_pylist([row], schema=arrow_schema(PACKET_SCHEMA))


def check_seams(seams: Iterable[tuple[str, Seam]]) -> None:
    """PartsDoNotMeet unless each part begins where the one before it in its file has ended."""
    for file, parts in groupby(sorted(seams), key=lambda each: each[0]):
        in_order = [Seam(0, 0), *(seam for _, seam in parts)]
        for before, part in pairwise(in_order):
            if part.began != before.reached:
                raise PartsDoNotMeet(f"{file}: {before.reached} and {part.began}")
