"""Texts, and which of them is the longest one that another text begins with.

    backup.          backup.db.       report.            "" -- backup. --+-- db.
                                                          |              +-- files.
    longest_prefix_of("backup.db.daily") == "backup.db."  +--- report.

A node stands for the text from the root down to it, and has at least two children or is one of the
texts. So the way down to a text has as many steps as there are texts on it and forks, never more
than the text has characters, however many texts there are elsewhere. ``steps`` counts them all: who
looks up many texts at a stretch can stop after so much work.
"""

from __future__ import annotations


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
        """A node that is no text and has a single child becomes one with it."""
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
