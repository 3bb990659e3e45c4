"""Rules, and which of them a job runs by.

    job  backup.db.daily          patterns  "backup.db."  "backup."  "report."
         ^^^^^^^^^^               lengths        10           7          7
                                  asked      backup.db.   backup.

A pattern is a literal prefix. The longest one that the job begins with wins; of several rules with
that pattern, the one with the smallest identifier. An empty pattern matches no job.

To find it, the beginning of the job's identifier is looked up once for each length that a pattern
has, longest first: the number of rules does not matter.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from journeyman.formats.ztick import RuleSet

__all__ = ["RuleBook"]


class RuleBook:
    """The rules by identifier, and by pattern."""

    __slots__ = ("_by_pattern", "_changes", "_lengths", "_patterns_of_length", "_rules")

    def __init__(self) -> None:
        self._rules: dict[str, RuleSet] = {}
        self._by_pattern: dict[str, list[str]] = {}  # identifiers, smallest first
        self._patterns_of_length: dict[int, int] = {}  # how many there are
        self._lengths: list[int] = []  # longest first; 0 is never among them
        self._changes: list[tuple[str, RuleSet | None]] | None = None  # rules before, by id

    def __len__(self) -> int:
        return len(self._rules)

    def get(self, identifier: str) -> RuleSet | None:
        return self._rules.get(identifier)

    def match(self, job_identifier: str) -> RuleSet | None:
        """The rule that this job runs by."""
        for length in self._lengths:
            # A job shorter than that comes out whole; if it is a pattern, none can be longer.
            identifiers = self._by_pattern.get(job_identifier[:length])
            if identifiers:
                return self._rules[identifiers[0]]
        return None

    def listing(self, prefix: str) -> Iterable[RuleSet]:
        """The rules whose identifier begins with ``prefix``."""
        return (rule for rule in self._rules.values() if rule.identifier.startswith(prefix))

    def put(self, rule: RuleSet) -> None:
        """Create or replace the rule."""
        self._replace(rule.identifier, rule)

    def remove(self, identifier: str) -> bool:
        """Forget the rule; whether there was one."""
        if identifier not in self._rules:
            return False
        self._replace(identifier, None)
        return True

    def _replace(self, identifier: str, rule: RuleSet | None) -> None:
        before = self._rules.pop(identifier, None)
        if before is not None:
            self._leave(before.pattern, identifier)
        if rule is not None:
            self._rules[identifier] = rule
            self._join(rule.pattern, identifier)
        if self._changes is not None:
            self._changes.append((identifier, before))

    def _join(self, pattern: str, identifier: str) -> None:
        if pattern and pattern not in self._by_pattern:
            self._by_pattern[pattern] = []
            self._count_length(len(pattern), 1)
        if pattern:
            insort(self._by_pattern[pattern], identifier)

    def _leave(self, pattern: str, identifier: str) -> None:
        if not pattern:
            return
        identifiers = self._by_pattern[pattern]
        del identifiers[bisect_left(identifiers, identifier)]
        if not identifiers:
            del self._by_pattern[pattern]
            self._count_length(len(pattern), -1)

    def _count_length(self, length: int, by: int) -> None:
        patterns = self._patterns_of_length.pop(length, 0) + by
        if patterns:
            self._patterns_of_length[length] = patterns
        if patterns == 0 or patterns == by:
            self._lengths = sorted(self._patterns_of_length, reverse=True)

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        self._changes = []

    def commit_batch(self) -> None:
        self._changes = None

    def undo_batch(self) -> None:
        changes, self._changes = self._changes, None
        for identifier, before in reversed(changes or ()):
            self._replace(identifier, before)
