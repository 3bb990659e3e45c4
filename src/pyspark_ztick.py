"""Found by PySpark itself: the format ``ztick``. See journeyman.spark.source."""

from journeyman.spark.source import ZtickSource

DefaultSource = ZtickSource
