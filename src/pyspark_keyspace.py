"""Found by PySpark itself: the format ``keyspace``. See journeyman.spark.source."""

from journeyman.spark.source import KeyspaceSource

DefaultSource = KeyspaceSource
