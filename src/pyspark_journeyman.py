"""Found by PySpark itself: the format ``journeyman``. See journeyman.spark.sinks.server."""

from journeyman.spark.sinks.server import ServerSink

DefaultSource = ServerSink
