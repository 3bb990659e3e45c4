"""Found by PySpark itself: the format ``kestrel``. See journeyman.spark.source."""

from journeyman.spark.data_sources import KestrelSource

DefaultSource = KestrelSource
