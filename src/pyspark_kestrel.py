"""Found by PySpark itself: the format ``kestrel``. See journeyman.spark.source.api."""

from journeyman.spark.source.api import KestrelSource

DefaultSource = KestrelSource
