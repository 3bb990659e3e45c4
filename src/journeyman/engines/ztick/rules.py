"""Rules, and which of them a job runs by.

    job  backup.db.daily          patterns  "backup.db."  "backup."  "report."
         ^^^^^^^^^^               runs by   "backup.db."

A pattern is a literal prefix. The longest one that the job begins with wins; of several rules with
that pattern, the one with the smallest identifier. An empty pattern matches no job.

Patterns lie in a prefix tree: the number of rules does not matter, and neither does how many
lengths their patterns have. ``steps`` counts the work of all matches.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from journeyman.engines.prefix_tree import PrefixTree
from journeyman.formats.ztick import RuleSet


class RuleBook:
    """The rules by identifier, and by pattern."""

    __slots__ = ("_by_pattern", "_changes", "_patterns", "_rules")

    def __init__(self) -> None:
        self._rules: dict[str, RuleSet] = {}
        self._by_pattern: dict[str, list[str]] = {}  # identifiers, smallest first
        self._patterns = PrefixTree()  # the empty one is never among them
        self._changes: list[tuple[str, RuleSet | None]] | None = None  # rules before, by id

    def __len__(self) -> int:
        return len(self._rules)

    def get(self, identifier: str) -> RuleSet | None:
        return self._rules.get(identifier)

    def match(self, job_identifier: str) -> RuleSet | None:
        """The rule that this job runs by."""
        pattern = self._patterns.longest_prefix_of(job_identifier)
        return None if pattern is None else self._rules[self._by_pattern[pattern][0]]

    @property
    def steps(self) -> int:
        return self._patterns.steps

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
            self._patterns.add(pattern)
        if pattern:
            insort(self._by_pattern[pattern], identifier)

    def _leave(self, pattern: str, identifier: str) -> None:
        if not pattern:
            return
        identifiers = self._by_pattern[pattern]
        del identifiers[bisect_left(identifiers, identifier)]
        if not identifiers:
            del self._by_pattern[pattern]
            self._patterns.remove(pattern)

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        self._changes = []

    def commit_batch(self) -> None:
        self._changes = None

    def undo_batch(self) -> None:
        changes, self._changes = self._changes, None
        for identifier, before in reversed(changes or ()):
            self._replace(identifier, before)
