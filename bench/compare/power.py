"""What a disk holds after a power cut: the files as they were at their last sync.

    strace of all that write --> calls in the order of time --> Files --> left on the disk

A write is kept once the file was synced after it. Names are kept at once: creating, renaming and
removing a file counts as durable when it is called, in favour of every peer. Files that were there
before the trace begin with the bytes that they had then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

CALLS = (
    "openat,open,creat,lseek,write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync,"
    "sync_file_range,rename,renameat,renameat2,unlink,unlinkat,ftruncate,fallocate"
)
TRACE = (
    "strace",
    "-f",
    "--seccomp-bpf",
    "-ttt",
    "-y",
    "-xx",
    "-s",
    "4194304",
    "-e",
    f"trace={CALLS}",
)

_LINE = re.compile(r"^(\d+) +([\d.]+) (?:<\.\.\. (\w+) resumed>(.*)|(\w+)\((.*))$")
_HEX = re.compile(r"\\x([0-9a-f]{2})")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FD = re.compile(r"(-?\d+)<((?:\\x[0-9a-f]{2})+)>")
_RESULT = re.compile(r"\) += (-?\d+)(?:<((?:\\x[0-9a-f]{2})+)>)?")
_UNFINISHED = " <unfinished ...>"


@dataclass(slots=True)
class _File:
    durable: bytearray = field(default_factory=bytearray)
    current: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class _Call:
    at_s: float
    process: str
    name: str
    arguments: str
    result: re.Match[str]


class Files:
    """The files below a directory: what processes wrote, and what of it a power cut leaves."""

    def __init__(self, directory: Path) -> None:
        self._root = str(directory)
        self._files: dict[str, _File] = {}
        self._offsets: dict[tuple[str, str], int] = {}
        for path in directory.rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                self._files[str(path)] = _File(bytearray(data), bytearray(data))

    def follow(self, traces: list[Path]) -> None:
        """Do what the traces say, in the order of time over all of them."""
        calls = [call for trace in traces for call in _calls_of(trace)]
        for call in sorted(calls, key=lambda call: call.at_s):
            self._do(call)

    def leave(self) -> int:
        """Write what a power cut leaves to the real files; return how many bytes are lost."""
        lost = 0
        for name, file in self._files.items():
            path = Path(name)
            if path.exists():
                lost += sum(a != b for a, b in zip(file.current, file.durable, strict=False))
                lost += max(0, len(file.current) - len(file.durable))
                with path.open("r+b") as target:  # keeps the owner of the file
                    target.write(file.durable)
                    target.truncate()
        return lost

    def _do(self, call: _Call) -> None:
        names = [_text(each).decode(errors="replace") for each in _STRING.findall(call.arguments)]
        if call.name in ("openat", "open", "creat"):
            self._open(call, names)
        elif call.name.startswith("rename"):
            if names[0] in self._files:
                self._files[names[-1]] = self._files.pop(names[0])
        elif call.name.startswith("unlink"):
            self._files.pop(names[0], None)
        else:
            self._on_descriptor(call)

    def _open(self, call: _Call, names: list[str]) -> None:
        path = _text(call.result[2] or "").decode(errors="replace") or names[-1]
        if not path.startswith(self._root):
            return
        file = self._files.get(path)
        if file is None and "O_CREAT" in call.arguments:
            file = self._files[path] = _File()
        if file is not None:
            if "O_TRUNC" in call.arguments:
                file.current.clear()
            at_end = "O_APPEND" in call.arguments
            self._offsets[call.process, path] = -1 if at_end else 0

    def _on_descriptor(self, call: _Call) -> None:
        descriptor = _FD.match(call.arguments)
        if descriptor is None:
            return
        path = _text(descriptor[2]).decode(errors="replace")
        file = self._files.get(path)
        if file is None:
            return
        count = int(call.result[1])
        numbers = [int(n) for n in re.findall(r", (-?\d+)", call.arguments)]
        if call.name in ("fsync", "fdatasync", "sync_file_range"):
            file.durable[:] = file.current
        elif call.name == "ftruncate":
            _resize(file.current, numbers[-1])
        elif call.name == "fallocate":
            _resize(file.current, max(len(file.current), numbers[-2] + numbers[-1]))
        elif call.name == "lseek":
            self._offsets[call.process, path] = count
        else:
            data = b"".join(map(_text, _STRING.findall(call.arguments)))[:count]
            if call.name.startswith("pwrite"):
                at = numbers[-1]
            else:
                at = self._offsets.get((call.process, path), -1)
                if at >= 0:
                    self._offsets[call.process, path] = at + len(data)
            at = len(file.current) if at < 0 else at
            _resize(file.current, max(len(file.current), at))
            file.current[at : at + len(data)] = data


def _resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def _text(escaped: str) -> bytes:
    return bytes.fromhex("".join(_HEX.findall(escaped)))


def _calls_of(trace: Path) -> list[_Call]:
    """Return the calls that succeeded, at the time they began; a sync counts when it returned."""
    begun: dict[str, tuple[float, str, str]] = {}
    calls = []
    for line in trace.read_text(errors="replace").splitlines():
        parts = _LINE.match(line)
        if parts is None:
            continue
        process, at, resumed, rest, name, arguments = parts.groups()
        if name is not None and arguments.endswith(_UNFINISHED):
            begun[process] = float(at), name, arguments.removesuffix(_UNFINISHED)
            continue
        began_s = float(at)
        if resumed is not None:
            if process not in begun:
                continue
            began_s, name, first = begun.pop(process)
            arguments = first + rest
            if name in ("fsync", "fdatasync"):
                began_s = float(at)
        result = _RESULT.search(arguments)
        if result is not None and int(result[1]) >= 0:
            calls.append(_Call(began_s, process, name, arguments, result))
    return calls
