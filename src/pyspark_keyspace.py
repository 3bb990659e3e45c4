"""Found by PySpark itself: the format ``keyspace``. See journeyman.spark.source.sources."""

from journeyman.spark.source.sources import KeyspaceSource

DefaultSource = KeyspaceSource
