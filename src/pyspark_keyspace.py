"""Found by PySpark itself: the format ``keyspace``. See journeyman.spark.source.api."""

from journeyman.spark.source.api import KeyspaceSource

DefaultSource = KeyspaceSource
