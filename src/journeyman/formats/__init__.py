"""Bytes <-> records, pure and exact: a module or a folder per dialect, and what they share.

A record is a fact in the past; an entry is a record with its place in a buffer (framing.Entry).
Each dialect offers a codec (framing.Codec); framing.scan works on any.

    framing.py       entry, codec, ending: the vocabulary of all formats
    timed_frame.py   the frame of the records of workq and the ledger
    seals.py         checksums inside the logs whose formats have none
"""
