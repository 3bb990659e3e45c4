"""The auth file: which secrets open the server, and what each of them may touch.

    # one section a token
    [token.deploy]
    secret = "sk_deploy_a1b2c3d4e5f6"
    namespace = "deploy."              # identifiers that begin with this; "*" is all of them
    runners = "http queue shell"       # what its rules may do; "*" is everything
    access = "read"                    # look over HTTP, and nothing else; "write" is the default

The namespace holds for jobs, rules and their patterns, and for the names of queues, also those that
rules put jobs and items on. A file in which no token has ``runners`` is one of ztick: all of them
may use every runner. As soon as one token has ``runners``, a token without may use none.

The file is read line by line, as ztick reads it: quotes are optional, backslashes are ordinary, the
last of two equal keys counts; sections and keys it does not know are ignored with a note. Refused
are: a token without secret or namespace, or with an empty one, a secret that two tokens share, a
token that is there twice, a runner that does not exist. An empty file is fine: no client can log in
then. A file that every user of the machine can read is noted.

Secrets are kept as keyed digests only. They cannot be printed. All of them are compared, each in
constant time, so how long a lookup takes says nothing about how much of a secret was right.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from journeyman.config.loading import read_text_file
from journeyman.errors import UsageError
from journeyman.formats.ztick import FanOutRunner, Runner, WorkQueueRunner
from journeyman.formats.ztick.codec import ALL_RUNNER_WORDS, runner_word
from journeyman.local_access import AUTO, token_path, token_text

ALL_NAMESPACES = "*"

_HEADING = re.compile(r"\[([^\]]*)\]\s*(?:#.*)?")
_QUOTED = re.compile(r'"([^"]*)"\s*(?:#.*)?')
_NEEDED = ("secret", "namespace")
_KEYS = (*_NEEDED, "runners", "access")
_ACCESS = {"read": False, "write": True}
_PROGRAMS = frozenset({"shell", "direct", "awf"})
_MOST_NAMED = 20  # tokens in a message
_DIGEST_KEY = secrets.token_bytes(
    hashlib.blake2b.MAX_KEY_SIZE
)  # a digest means nothing to another process


@dataclass(frozen=True, slots=True)
class Token:
    """The permissions of a client that gave the right secret."""

    name: str
    namespace: str
    runners: frozenset[str] = frozenset(ALL_RUNNER_WORDS)
    may_write: bool = True  # no: it opens the HTTP port only, and only to look
    digest: bytes = field(default=b"", repr=False, compare=False)

    def covers(self, identifier: str) -> bool:
        """Return whether the job or rule of this identifier is the token's to touch."""
        return self.namespace == ALL_NAMESPACES or identifier.startswith(self.namespace)

    def refuses(self, runner: Runner) -> str:
        """Why a rule of this token must not do that, or nothing."""
        word = runner_word(runner)
        if word not in self.runners:
            return f"this token may not use the runner {word}"
        name = runner.name if isinstance(runner, WorkQueueRunner) else ""
        name = runner.queue if isinstance(runner, FanOutRunner) else name
        return "" if not name or self.covers(name) else "insufficient namespace scope"


class Tokens:
    """The tokens of an auth file, found by their secret."""

    __slots__ = ("_by_digest", "names_runners", "notes")

    def __init__(
        self,
        by_secret: Mapping[bytes, Token],
        notes: tuple[str, ...] = (),
        *,
        names_runners: bool = False,
    ) -> None:
        """``names_runners``: some of them do, so all are bound; else it is a file of ztick."""
        digests = {secret: digest_of(secret) for secret in by_secret}
        self._by_digest = {
            digests[secret]: replace(token, digest=digests[secret])
            for secret, token in by_secret.items()
        }
        self.notes = notes
        self.names_runners = names_runners

    @property
    def warning(self) -> str:
        """A file of ztick lets every token run programs: their names, and how to restrict them."""
        names = [token.name for token in self if token.may_write and token.runners & _PROGRAMS]
        if self.names_runners or not names:
            return ""
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        return (
            "no token names runners, so rules of all of them can run programs:"
            f" {', '.join(names[:_MOST_NAMED])}{more}; to restrict them, give each token"
            ' the runners that it may use, such as runners = "http queue"'
        )

    @property
    def namespaces(self) -> set[str]:
        """All but that of everything."""
        return {token.namespace for token in self} - {ALL_NAMESPACES}

    def __len__(self) -> int:
        return len(self._by_digest)

    def __iter__(self) -> Iterator[Token]:
        return iter(self._by_digest.values())

    def __repr__(self) -> str:
        return f"Tokens({', '.join(token.name for token in self._by_digest.values())})"

    def find(self, secret: bytes) -> Token | None:
        """The token that this secret opens. Takes as long whether or not there is one."""
        return self.of_digest(digest_of(secret))

    def of_digest(self, digest: bytes) -> Token | None:
        """Return the token with this digest of a secret."""
        found = None
        for known, token in self._by_digest.items():
            if hmac.compare_digest(known, digest):
                found = token
        return found

    def __contains__(self, token: Token) -> bool:
        """Return whether a token that was found before is still here, with the same secret and
        rights.
        """
        return self._by_digest.get(token.digest) == token


def digest_of(secret: bytes) -> bytes:
    """The digest kept of a secret; it belongs to this process and is useless in another."""
    return hashlib.blake2b(secret, key=_DIGEST_KEY).digest()


@dataclass(slots=True)
class _Section:
    """A token as far as it was read; the line of its heading is where complaints point to."""

    line: int
    name: str
    values: dict[str, str]


def load_tokens(path: str) -> Tokens:
    """The tokens of an auth file; ``auto``: of the user's own."""
    if path == AUTO:
        return parse_tokens(token_text(), token_path())
    tokens = parse_tokens(read_text_file(path, f"controller.auth_file = {path!r}"), path)
    if mode := stat.S_IMODE(os.stat(path).st_mode) & 0o007:
        readable = f"{path}: every user of this machine can read or change the secrets in it"
        tokens.notes = (*tokens.notes, f"{readable} (mode ends in {mode}); chmod o= {path}")
    return tokens


def parse_tokens(text: str, file: str) -> Tokens:
    """The tokens in ``text``; ``file`` is the name that errors and notes give it."""
    notes: list[str] = []
    by_secret: dict[bytes, Token] = {}
    sections = _read_sections(text, file, notes)
    names_runners = any("runners" in section.values for section in sections)
    for section in sections:
        place = f"{file}:{section.line}: token.{section.name}"
        for key in _NEEDED:
            if not section.values.get(key):
                state = "an empty" if key in section.values else "no"
                raise UsageError(f'{place} has {state} {key}; give it {key} = "..."')
        secret = section.values["secret"].encode()
        if (other := by_secret.get(secret)) is not None:
            raise UsageError(f"{place} has the same secret as token.{other.name}")
        namespace = section.values["namespace"]
        runners = _runners(section.values.get("runners", "" if names_runners else "*"), place)
        access = section.values.get("access", "write")
        if access not in _ACCESS:
            raise UsageError(f"{place}: access = {access!r}: expected read or write")
        by_secret[secret] = Token(section.name, namespace, runners, _ACCESS[access])
    return Tokens(by_secret, tuple(notes), names_runners=names_runners)


def _runners(text: str, place: str) -> frozenset[str]:
    every = frozenset(ALL_RUNNER_WORDS)
    given = {word.lower() for word in re.split(r"[\s,]+", text) if word}
    if given == {ALL_NAMESPACES}:
        return every
    for word in sorted(given - every):
        allowed = ", ".join(ALL_RUNNER_WORDS)
        raise UsageError(f"{place}: runners: there is no {word!r}; allowed are {allowed}, or *")
    return frozenset(given)


def _read_sections(text: str, file: str, notes: list[str]) -> list[_Section]:
    sections: dict[str, _Section] = {}
    current: _Section | None = None
    for number, line in _lines(text):
        place = f"{file}:{number}"
        if line.startswith("["):
            heading = _HEADING.fullmatch(line)
            kind, _, name = heading[1].strip().partition(".") if heading else ("", "", "")
            if kind != "token" or not name:
                notes.append(f"{place}: not a [token.NAME] section; ignored")
                current = None
                continue
            if name in sections:
                first = sections[name].line
                raise UsageError(f"{place}: token.{name} appears twice; first on line {first}")
            current = sections[name] = _Section(number, name, {})
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        # The line itself is not repeated: it may hold a secret.
        if not equals or current is None or key not in _KEYS:
            notes.append(f"{place}: not a secret, namespace, runners or access; ignored")
        else:
            current.values[key] = _unquoted(value)
    return list(sections.values())


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if line and not line.startswith("#"):
            yield number, line


def _unquoted(value: str) -> str:
    if quoted := _QUOTED.fullmatch(value):
        return quoted[1]
    if len(value) > 1 and value.startswith('"') and value.endswith('"'):
        return value[1:-1]
    return re.split(r"\s#", value, maxsplit=1)[0].rstrip()
