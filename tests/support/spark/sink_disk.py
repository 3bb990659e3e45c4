"""A simulated disk with what sinks need besides: directories renamed and removed."""

from __future__ import annotations

import errno
import os

from tests.support.simulated_disk import SimulatedDisk
from tests.support.simulated_files import Change, DirectoryNode, Survival

__all__ = ["SimulatedSinkDisk"]


class SimulatedSinkDisk(SimulatedDisk):
    """See journeyman.spark.sinks.commit.SinkDisk."""

    def after_crash(self, survival: Survival = "lose_all_unsynced") -> SimulatedSinkDisk:
        after = SimulatedSinkDisk()
        after._root = super().after_crash(survival)._root
        return after

    def rename(self, source: str, target: str) -> None:
        node = self._find(source)
        if not isinstance(node, DirectoryNode):
            super().rename(source, target)
            return
        replaced = self._find(target)
        if isinstance(replaced, DirectoryNode) and replaced.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        source_dir, source_name = self._place(source)
        target_dir, target_name = self._place(target)
        self._step("rename", target)
        if source_dir is target_dir:
            source_dir.change(Change(removed=source_name, added=target_name, node=node))
        else:
            came = Change(added=target_name, node=node)
            target_dir.change(came)
            source_dir.change(Change(removed=source_name, after=(target_dir, came)))

    def remove_dir(self, path: str) -> None:
        directory = self._directory(path)
        if directory.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        above, name = self._place(path)
        self._step("rmdir", path)
        above.change(Change(removed=name))
