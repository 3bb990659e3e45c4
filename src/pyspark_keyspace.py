"""Found by PySpark itself: the format ``keyspace``. See journeyman.spark.sources."""

from journeyman.spark.sources import KeyspaceSource as DefaultSource

__all__ = ["DefaultSource"]
