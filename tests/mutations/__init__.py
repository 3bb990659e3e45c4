"""Planted bugs: do the tests notice what they are there for?

``bugs.toml`` lists realistic bugs, each as a small replacement in one source file, with the nearest
tests. ``lane`` plants one bug at a time in a copy of the sources and runs these tests on the copy;
a bug is noticed if they fail. ``make test`` runs a fixed dozen, ``make proof`` all of them.
"""
