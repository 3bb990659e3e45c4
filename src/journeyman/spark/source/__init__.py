"""Logs as rows: which bytes a task reads, and what it makes of them.

    options        what a read was asked to do, and the columns of its rows
    splits         logs -> pieces of files, several to a task
    pieces         what such a piece is
    piece_reader   a piece -> chunks of records, and damages
    chunks         bytes -> chunks, by the decoders of each dialect
    task           chunks and damages -> record batches; packets: many records in one row

``spark/data_sources.py`` has the classes that Spark calls.
"""
