"""Found by PySpark itself: the format ``workq``. See journeyman.spark.source.sources."""

from journeyman.spark.source.sources import WorkqSource

DefaultSource = WorkqSource
