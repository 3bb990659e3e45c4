"""Bytes on a connection <-> commands and replies, without a socket in sight.

Each dialect is a machine that is fed bytes and gives back commands, and a set of functions that
turn answers into bytes. Nothing here waits, reads a clock or decides what a command does.

    ztick.py           the front door: Parser (bytes -> events) and everything below that is public
    ztick/commands.py  what a line can ask for
    ztick/tokens.py    where a line ends, its tokens, and quoting
    ztick/times.py     the timestamps of SET
    ztick/rules.py     the runner grammar of RULE SET, both ways
    ztick/queue_runner.py     the queue runner: which job of the work queue a due job becomes
    ztick/replies.py   answers -> bytes

    workq.py           the front door: Parser, lines with payloads -> events
    workq/commands.py  what a client can ask for, and every limit
    workq/readers.py   the words, flags and payload of a command -> itself, or what is wrong with it
    workq/fields.py    ids, names, numbers, times, flags
    workq/fast_path.py     the commonest commands in one step
    workq/replies.py   what an engine replies with, and its bytes

    kestrel.py           the front door: Parser, lines with items -> events
    kestrel/commands.py  what a client can ask for
    kestrel/readers.py   the words of a line -> a command, or what is wrong with it
    kestrel/replies.py   answers -> bytes
"""
