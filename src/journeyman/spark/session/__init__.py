"""A Spark session as the pipeline wants it, on any master."""

from journeyman.spark.session.session import (
    TINY_SETTINGS,
    active_session,
    build_session,
    cancel_all,
    end_session,
)

__all__ = [
    "TINY_SETTINGS",
    "active_session",
    "build_session",
    "cancel_all",
    "end_session",
]
