"""Found by PySpark itself: the format ``ledger``. See journeyman.spark.source.api."""

from journeyman.spark.source.api import LedgerSource

DefaultSource = LedgerSource
