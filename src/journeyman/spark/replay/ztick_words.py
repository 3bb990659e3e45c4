"""The words that rows of ztick use for numbers of the log, by number."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

__all__ = ["RUNNERS", "STATUSES"]

STATUSES: Final = pa.array(["planned", "triggered", "executed", "failed"])
RUNNERS: Final = pa.array(["shell", "amqp", "direct", "awf", "http", "redis"])
