"""Found by PySpark itself: the format ``workq``. See journeyman.spark.source."""

from journeyman.spark.data_sources import WorkqSource

DefaultSource = WorkqSource
