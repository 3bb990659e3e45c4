"""The plan of a DataFrame as text: what ``--explain`` prints instead of running it."""

from __future__ import annotations

import contextlib
import io

from pyspark.sql import DataFrame


def plan_of(frame: DataFrame) -> str:
    """Spark's formatted physical plan. Nothing of the plan is executed."""
    text = io.StringIO()
    # explain() prints, in every kind of session; the plan is not to be had as a value.
    with contextlib.redirect_stdout(text):
        frame.explain("formatted")
    return text.getvalue().strip()
