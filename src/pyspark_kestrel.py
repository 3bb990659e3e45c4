"""Found by PySpark itself: the format ``kestrel``. See journeyman.spark.source."""

from journeyman.spark.source import KestrelSource

DefaultSource = KestrelSource
