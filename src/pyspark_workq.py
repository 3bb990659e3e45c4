"""Found by PySpark itself: the format ``workq``. See journeyman.spark.sources."""

from journeyman.spark.sources import WorkqSource as DefaultSource

__all__ = ["DefaultSource"]
