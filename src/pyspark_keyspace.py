"""Found by PySpark itself: the format ``keyspace``. See journeyman.spark.source.sources."""
