"""Found by PySpark itself: the format ``ledger``. See journeyman.spark.source."""

from journeyman.spark.source import LedgerSource

DefaultSource = LedgerSource
