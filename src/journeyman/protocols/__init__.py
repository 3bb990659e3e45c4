"""Bytes on a connection <-> commands and replies, without a socket in sight.

Each dialect is a machine that is fed bytes and gives back commands, and a set of functions that
turn answers into bytes. Nothing here waits, reads a clock or decides what a command does.

    ztick.py           the front door: Parser (bytes -> events) and everything below that is public
    ztick_commands.py  what a line can ask for
    ztick_tokens.py    where a line ends, its tokens, and quoting
    ztick_times.py     the timestamps of SET
    ztick_rules.py     the runner grammar of RULE SET, both ways
    ztick_replies.py   answers -> bytes
"""
