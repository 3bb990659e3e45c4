"""Found by PySpark itself: the format ``ztick``. See journeyman.spark.source.api."""

from journeyman.spark.source.api import ZtickSource

DefaultSource = ZtickSource
