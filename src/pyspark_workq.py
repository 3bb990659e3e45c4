"""Found by PySpark itself: the format ``workq``. See journeyman.spark.source.sources."""
