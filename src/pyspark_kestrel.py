"""Found by PySpark itself: the format ``kestrel``. See journeyman.spark.source.sources."""
