"""Bytes on a connection <-> commands and replies, without a socket in sight.

Each dialect is a machine that is fed bytes and gives back commands, and a set of functions that
turn answers into bytes. Nothing here waits, reads a clock or decides what a command does.

    <dialect>/parser.py     a connection: bytes -> events, in order, however the bytes are cut
    <dialect>/commands.py   what a client can ask for, and every limit
    <dialect>/replies.py    answers -> bytes
    ztick/rules.py          the runner grammar of RULE SET, both ways
    workq/readers.py        the words, flags and payload of a command -> itself, or what is wrong
    events.py               what all can meet: a secret, or a client that speaks another protocol
"""
