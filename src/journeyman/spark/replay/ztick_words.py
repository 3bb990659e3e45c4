"""The words that rows of ztick use for numbers of the log, by number."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from journeyman.formats.ztick.runners import RUNNER_WORDS

STATUSES: Final = pa.array(["planned", "triggered", "executed", "failed"])
RUNNERS: Final = pa.array(RUNNER_WORDS)
