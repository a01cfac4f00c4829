"""What a loader offers of its state: which epoch it is in, where it is, and to go on there."""

from __future__ import annotations

from typing import Any, cast

from aloader.settings import Settings
from aloader.state.journal import Journal


class Resumable:
    """A loader, as far as its epochs and states are concerned."""

    _journal: Journal
    _runtime: Any

    @property
    def _settings(self) -> Settings:
        return cast("Settings", self)

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next batch belongs to, from 0: `set_epoch` sets it, each pass counts on."""
        return self._journal.epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: behind the last batch that it gave, in a small dict that JSON can hold (`state.writing`
        has its keys). Before an epoch's first batch, and after its last, it is the beginning of the next one.

        Callable at any moment, also while somebody waits for a batch; costs a fraction of a millisecond, and nothing
        per batch. For a dataset with indices it is the same whatever the number of workers, and on every rank that is
        at the same batch: with `seed=`, or where torch's generator was seeded alike on all. See docs/howto/resume.md
        for samplers and datasets that have a state of their own. Raises what those raise, and TypeError for a state of
        theirs that JSON cannot hold.
        """
        return self._journal.state(
            self._settings, None if self._runtime is None else self._runtime.kept(self._settings)
        )

    def load_state_dict(self, state_dict: dict[str, Any], *, strict: bool = True) -> None:
        """Go on behind the batch that a state was taken after, with the next `for` or `async for`; {} takes that back.

        Any number of workers; any number of ranks, where the loader (or `aloader.sampling`) shares the data out among
        them. Raises ValueError where the state is of another dataset, sampler or batch size, and says what differs;
        `strict=False` takes it all the same.
        """
        self._journal.load(self._settings, state_dict, strict=strict)
