"""A crew's ear at the starter, which says which processes have gone."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from aloader.channel.roles import Watcher
from aloader.pool.starter import Starter


class Reports:
    """Watches the starter's descriptors, which change when processes start and end.

    Other crews watch them too, perhaps on the same loop, which knows one callback for a descriptor: so each crew
    watches duplicates of its own.
    """

    def __init__(self, on_report: Callable[[], None]) -> None:
        self._on_report = on_report
        self._duplicates: dict[Any, int] = {}  # by whose they are
        weakref.finalize(self, _close, self._duplicates)

    def watch(self, watcher: Watcher, starter: Starter) -> None:
        """Watch what is there now, and no longer what has gone."""
        now = starter.watched()
        for whose in self._duplicates.keys() - now.keys():
            watcher.reading(self._duplicates[whose], None)
            os.close(self._duplicates.pop(whose))
        for whose in now.keys() - self._duplicates.keys():  # not by number: the next socket has the last one's again
            self._duplicates[whose] = os.dup(now[whose])
            watcher.reading(self._duplicates[whose], self._on_report)

    def unwatch(self, watcher: Watcher) -> None:
        """Watch nothing."""
        for duplicate in self._duplicates.values():
            watcher.reading(duplicate, None)
        _close(self._duplicates)


def _close(duplicates: dict[Any, int]) -> None:
    for duplicate in duplicates.values():
        os.close(duplicate)
    duplicates.clear()
