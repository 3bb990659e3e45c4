"""Found by PySpark itself: the format ``workq``. See journeyman.spark.source."""

from journeyman.spark.source import WorkqSource

DefaultSource = WorkqSource
