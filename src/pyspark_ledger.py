"""Found by PySpark itself: the format ``ledger``. See journeyman.spark.source."""

from journeyman.spark.data_sources import LedgerSource

DefaultSource = LedgerSource
