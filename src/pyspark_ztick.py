"""Found by PySpark itself: the format ``ztick``. See journeyman.spark.source.sources."""
