"""Rules, and which of them a job runs by.

    job  backup.db.daily          patterns  "backup.db."  "backup."  "report."
         ^^^^^^^^^^               runs by   "backup.db."

A pattern is a literal prefix. The longest one that the job begins with wins; of several rules with
that pattern, the one with the smallest identifier. An empty pattern matches no job.

Patterns lie in a prefix tree: neither the number of rules matters nor how many lengths their
patterns have. A node stands for the text from the root down to it, and has at least two children or
is one of the texts:

    backup.          backup.db.       report.            "" -- backup. --+-- db.
                                                          |              +-- files.
    longest_prefix_of("backup.db.daily") == "backup.db."  +--- report.

So the way down to a text has as many steps as there are texts on it and forks, never more than the
text has characters. ``steps`` counts the work of all matches: a decision that looks up many texts
can stop after so much work.
"""

from __future__ import annotations

from collections.abc import Iterable

from journeyman.engines.sorted_set import SortedSet
from journeyman.formats.ztick import RuleSet


class _Node:
    """``label`` is what its text has more than that of its parent."""

    __slots__ = ("children", "is_text", "label")

    def __init__(self, label: str, is_text: bool) -> None:
        self.label = label
        self.is_text = is_text
        self.children: dict[str, _Node] = {}  # by the first character of their labels


class PrefixTree:
    __slots__ = ("_root", "steps")

    def __init__(self) -> None:
        self._root = _Node("", False)
        self.steps = 0

    def longest_prefix_of(self, text: str) -> str | None:
        """The longest text in the tree that this one begins with, maybe itself; None: none."""
        node, at, end = self._root, 0, 0 if self._root.is_text else -1
        while at < len(text):
            child = node.children.get(text[at])
            if child is None or not text.startswith(child.label, at):
                break
            self.steps += 1
            node, at = child, at + len(child.label)
            if node.is_text:
                end = at
        return text[:end] if end >= 0 else None

    def add(self, text: str) -> None:
        """Put it in, if it is not there."""
        node, at = self._root, 0
        while at < len(text):
            child = node.children.get(text[at])
            if child is None:
                node.children[text[at]] = _Node(text[at:], True)
                return
            if not text.startswith(child.label, at):
                child = self._fork(node, child, _common(child.label, text, at))
            node, at = child, at + len(child.label)
        node.is_text = True

    def remove(self, text: str) -> None:
        """Take out a text that is there."""
        parent, node, at = self._root, self._root, 0
        while at < len(text):
            parent, node = node, node.children[text[at]]
            at += len(node.label)
        assert node.is_text
        assert at == len(text)
        node.is_text = False
        if node is self._root:
            return
        if not node.children:
            del parent.children[node.label[0]]
            if parent is not self._root and not parent.is_text:
                self._join(parent)
        else:
            self._join(node)

    @staticmethod
    def _fork(parent: _Node, child: _Node, size: int) -> _Node:
        """Put a node between them, for the first ``size`` characters of the child's label."""
        between = _Node(child.label[:size], False)
        child.label = child.label[size:]
        between.children[child.label[0]] = child
        parent.children[between.label[0]] = between
        return between

    @staticmethod
    def _join(node: _Node) -> None:
        """A node that is not a text and has a single child is merged with it."""
        if len(node.children) == 1:
            (child,) = node.children.values()
            node.label += child.label
            node.is_text = child.is_text
            node.children = child.children


def _common(label: str, text: str, at: int) -> int:
    """How many characters the label has in common with the text from there on."""
    size = 0
    for ours, theirs in zip(label, text[at : at + len(label)], strict=False):
        if ours != theirs:
            break
        size += 1
    return size


class RuleBook:
    """The rules by identifier, and by pattern."""

    __slots__ = ("_by_pattern", "_names", "_patterns", "_rules", "runner_kinds")

    def __init__(self) -> None:
        self._rules: dict[str, RuleSet] = {}
        self._names: SortedSet[str] = SortedSet()
        self._by_pattern: dict[str, SortedSet[str]] = {}  # identifiers
        self._patterns = PrefixTree()  # the empty one is never among them
        self.runner_kinds: set[type] = set()  # those of removed rules too

    def __len__(self) -> int:
        return len(self._rules)

    def get(self, identifier: str) -> RuleSet | None:
        return self._rules.get(identifier)

    def match(self, job_identifier: str) -> RuleSet | None:
        """The rule that this job runs by."""
        pattern = self._patterns.longest_prefix_of(job_identifier)
        return None if pattern is None else self._rules[self._by_pattern[pattern].first()]

    @property
    def steps(self) -> int:
        return self._patterns.steps

    def listing(self, prefix: str) -> Iterable[RuleSet]:
        """The rules whose identifier begins with ``prefix``."""
        return (rule for rule in self._rules.values() if rule.identifier.startswith(prefix))

    def page(self, prefix: str, after: str, limit: int) -> tuple[RuleSet, ...]:
        """Return rules above ``after``, by identifier."""
        names = self._names.beginning_with(prefix, after, limit)
        return tuple(self._rules[name] for name in names)

    def replace(self, identifier: str, rule: RuleSet | None) -> RuleSet | None:
        """Put the rule, or without one forget what is there; the rule before."""
        before = self._rules.pop(identifier, None)
        if before is not None:
            self._leave(before.pattern, identifier)
        if before is None and rule is not None:
            self._names.add(identifier)
        elif before is not None and rule is None:
            self._names.remove(identifier)
        if rule is not None:
            self._rules[identifier] = rule
            self.runner_kinds.add(type(rule.runner))
            self._join(rule.pattern, identifier)
        return before

    def _join(self, pattern: str, identifier: str) -> None:
        if pattern and pattern not in self._by_pattern:
            self._by_pattern[pattern] = SortedSet()
            self._patterns.add(pattern)
        if pattern:
            self._by_pattern[pattern].add(identifier)

    def _leave(self, pattern: str, identifier: str) -> None:
        if not pattern:
            return
        identifiers = self._by_pattern[pattern]
        identifiers.remove(identifier)
        if not identifiers:
            del self._by_pattern[pattern]
            self._patterns.remove(pattern)
