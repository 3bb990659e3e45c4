"""Bytes on a connection <-> commands and replies, without a socket in sight.

Each dialect is a machine that is fed bytes and gives back commands, and a set of functions that
turn answers into bytes. Nothing here waits, reads a clock or decides what a command does.

    ztick/parser.py      lines -> tokens -> events; the times of SET
    ztick/commands.py    what a line can ask for
    ztick/rules.py       the runner grammar of RULE SET, both ways
    ztick/replies.py     answers -> bytes, and quoting

    workq/parser.py      lines with payloads -> events
    workq/commands.py    what a client can ask for, and every limit
    workq/readers.py     the words, flags and payload of a command -> itself, or what is wrong
    workq/replies.py     what an engine replies with, and its bytes

    kestrel/parser.py    lines with items -> events
    kestrel/commands.py  what a client can ask for
    kestrel/replies.py   answers -> bytes
"""
