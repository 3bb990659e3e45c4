"""Ids for jobs that have none: the same name gives the same id, in the form of a version 4 UUID.

The work queue takes version 4 only. These are the first bytes of a SHA-256 with the bits of that
version set, so a conversion that is run twice makes the same jobs, which a server refuses to add
twice.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it


def id_column(text: Column) -> Column:
    """16 bytes for each name: what ``id_of`` gives."""
    digits = F.sha2(text, 256)
    # The variant is two bits: of the 17th digit the lower two stay.
    low = F.conv(F.substring(digits, 17, 1), 16, 10).cast("int").bitwiseAND(F.lit(3))
    variant = F.lower(F.hex(low.bitwiseOR(F.lit(8))))
    return F.unhex(
        F.concat(
            F.substring(digits, 1, 12),
            F.lit("4"),
            F.substring(digits, 14, 3),
            variant,
            F.substring(digits, 18, 15),
        )
    )
