"""Logs of one kind made into another, and what cannot be carried over, listed.

    ztick   -> workq      jobs that are planned become scheduled jobs; rules are listed
    workq   -> ztick      scheduled jobs become planned jobs; what else a job says is listed
    kestrel -> workq      items that some reader still waits for become jobs
    any     -> parquet    every record, and back, byte for byte
    any     -> keyspace   job records with their indexes and counters, sorted for a bulk load

A conversion is a function from state tables to two DataFrames: rows for a sink, and losses: one row
for every job, and every field of a job, that the other side has no place for, with the reason. What
is in neither does not exist.
"""

from __future__ import annotations

from journeyman.spark.convert.conversions import CONVERSIONS, Conversion, convert

__all__ = ["CONVERSIONS", "Conversion", "convert"]
