"""Bytes on a connection <-> commands and replies, without a socket in sight.

Each dialect is a machine that is fed bytes and gives back commands, and a set of functions that
turn answers into bytes. Nothing here waits, reads a clock or decides what a command does.

    ztick.py           the front door: Parser (bytes -> events) and everything below that is public
    ztick_commands.py  what a line can ask for
    ztick_tokens.py    where a line ends, its tokens, and quoting
    ztick_times.py     the timestamps of SET
    ztick_rules.py     the runner grammar of RULE SET, both ways
    ztick_queue.py     the queue runner: which job of the work queue a due job becomes
    ztick_replies.py   answers -> bytes

    workq.py           the front door: Parser, lines with payloads -> events
    workq_commands.py  what a client can ask for, and every limit
    workq_readers.py   the words, flags and payload of a command -> itself, or what is wrong with it
    workq_fields.py    ids, names, numbers, times, flags
    workq_usual.py     the commonest commands in one step
    workq_replies.py   what an engine replies with, and its bytes

    kestrel.py           the front door: Parser, lines with items -> events
    kestrel_commands.py  what a client can ask for
    kestrel_readers.py   the words of a line -> a command, or what is wrong with it
    kestrel_replies.py   answers -> bytes
"""
