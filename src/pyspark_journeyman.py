"""Found by PySpark itself: the format ``journeyman``. See journeyman.spark.sinks.server."""
