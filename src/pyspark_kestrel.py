"""Found by PySpark itself: the format ``kestrel``. See journeyman.spark.sources."""

from journeyman.spark.sources import KestrelSource as DefaultSource

__all__ = ["DefaultSource"]
