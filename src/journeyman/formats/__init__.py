"""Bytes <-> records, pure and exact: one package per dialect, and the vocabulary they share.

A record is a fact in the past; an entry is a record with its place in a buffer (framing.Entry).
Each dialect offers a codec (framing.Codec); framing.scan works on any.
"""
