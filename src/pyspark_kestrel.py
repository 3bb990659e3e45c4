"""Found by PySpark itself: the format ``kestrel``. See journeyman.spark.source.sources."""

from journeyman.spark.source.sources import KestrelSource

DefaultSource = KestrelSource
