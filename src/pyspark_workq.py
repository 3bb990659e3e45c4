"""Found by PySpark itself: the format ``workq``. See journeyman.spark.source.api."""

from journeyman.spark.source.api import WorkqSource

DefaultSource = WorkqSource
