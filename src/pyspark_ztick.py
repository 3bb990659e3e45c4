"""Found by PySpark itself: the format ``ztick``. See journeyman.spark.sources."""

from journeyman.spark.sources import ZtickSource as DefaultSource

__all__ = ["DefaultSource"]
