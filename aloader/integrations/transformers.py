"""aloader in Hugging Face's Trainer: `class MyTrainer(LoaderMixin, Trainer)`.

The Trainer makes its loaders of datasets, collators, samplers and its arguments, and has accelerate prepare them. All
of that is left to it; then what its loaders iterate is exchanged for aloader's, as `aloader.integrations.accelerate`
says. So it is the same for every version of the Trainer and for the trainers that derive from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from aloader.integrations.accelerate import adopt, skip_first_batches

try:
    from transformers import trainer as _theirs
except ImportError as error:
    raise ImportError("this needs Hugging Face transformers: pip install 'aloader[transformers]'") from error

__all__ = ["LoaderMixin"]


class LoaderMixin:
    """Stands before the Trainer among the base classes: `class MyTrainer(LoaderMixin, Trainer)`.

    Batches then come from aloader's workers, `dataloader_num_workers` of them, and datasets may be async (with 0
    workers, too). `loader_arguments` are for aloader.DataLoader, beyond and before those of the TrainingArguments:
    `loader_arguments = {"concurrency": 512}` in the class, or the same as a property.
    """

    loader_arguments: Mapping[str, Any] = MappingProxyType({})

    def get_train_dataloader(self) -> Any:
        """The Trainer's, with aloader's workers."""
        above: Any = super()
        return self._ours(above.get_train_dataloader())

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's, with aloader's workers."""
        above: Any = super()
        return self._ours(above.get_eval_dataloader(*args, **kwargs))

    def get_test_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's, with aloader's workers."""
        above: Any = super()
        return self._ours(above.get_test_dataloader(*args, **kwargs))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's. Where it goes on in the middle of an epoch, the rest of that comes from aloader, too."""
        above: Any = super()
        with _skipping():
            return above.train(*args, **kwargs)

    def _ours(self, prepared: Any) -> Any:
        arguments: Any = getattr(self, "args", None)
        # What torch's loader shows may be torch's default, which is too little for an async dataset.
        asked = {"prefetch_factor": arguments.dataloader_prefetch_factor}
        return adopt(prepared, **asked | dict(self.loader_arguments))


@contextlib.contextmanager
def _skipping() -> Iterator[None]:
    """Have the Trainer's module call our `skip_first_batches`, which leaves to accelerate's whatever is not ours.

    A name in somebody else's module: accelerate's own function would put torch's loader back, and the Trainer has no
    method around its call.
    """
    before = _theirs.skip_first_batches
    _theirs.skip_first_batches = skip_first_batches
    try:
        yield
    finally:
        _theirs.skip_first_batches = before
