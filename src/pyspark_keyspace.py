"""Found by PySpark itself: the format ``keyspace``. See journeyman.spark.source.sources."""

from journeyman.spark.source.sources import KeyspaceSource as DefaultSource

__all__ = ["DefaultSource"]
