"""Found by PySpark itself: the format ``ztick``. See journeyman.spark.source."""

from journeyman.spark.data_sources import ZtickSource

DefaultSource = ZtickSource
