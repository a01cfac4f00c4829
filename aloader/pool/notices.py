"""What the user is told by a warning while an epoch runs."""

from __future__ import annotations

import warnings
from typing import Any


class Notices:
    """What workers have to say to the user: each thing once in a loader's life."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def warn(self, text: str) -> None:
        """Say it, unless it has been said."""
        if text not in self._said:
            self._said.add(text)
            warnings.warn(text, UserWarning, stacklevel=2)


class LengthWatch:
    """Torch's warning where an iterable dataset gives more than its `len()` had said when the loader was asked.

    (It compares batches with samples, as torch does.)
    """

    def __init__(self, dataset: Any, length: int, num_workers: int) -> None:
        self._dataset = dataset
        self._length = length
        self._num_workers = num_workers
        self._seen = 0

    def __call__(self, batch: Any) -> Any:
        self._seen += 1
        if self._seen > self._length:
            text = (
                f"Length of IterableDataset {self._dataset} was reported to be {self._length}"
                f"(when accessing len(dataloader)), but {self._seen} samples have been fetched. "
            )
            if self._num_workers > 0:
                text += (
                    "For multiprocessing data-loading, this could be caused by not properly configuring the "
                    "IterableDataset replica at each worker. Please see "
                    "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
                )
            warnings.warn(text, stacklevel=2)
        return batch
