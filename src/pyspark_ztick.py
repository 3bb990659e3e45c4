"""Found by PySpark itself: the format ``ztick``. See journeyman.spark.source.sources."""

from journeyman.spark.source.sources import ZtickSource

DefaultSource = ZtickSource
