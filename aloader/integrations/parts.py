"""A loader taken apart: the arguments that make it again, whatever arguments there are. No framework may enter here."""

from __future__ import annotations

import inspect
from typing import Any, Final

from torch.utils.data import BatchSampler
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data.dataloader import _DatasetKind

#: What says which samples there are and how they go together. Sharding changes these, and nothing else.
SAMPLING: Final = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")


def arguments_of(loader: TorchDataLoader[Any]) -> dict[str, Any]:
    """Keyword arguments with which `type(loader)` makes a loader that does the same.

    Read off the signature: an argument is the attribute of the same name, so that a new argument is carried without a
    change here, and so are those of a subclass. `shuffle` has become the sampler, which both loaders share.

    Raises TypeError for a subclass whose constructor takes what it does not keep, or does not take what is needed.
    """
    kind = type(loader).__name__
    names = _parameters(type(loader))
    sampling = sampling_of(loader)
    others = {name: getattr(loader, name) for name in names if name not in SAMPLING and hasattr(loader, name)}
    for name, needed in names.items():
        if needed and name not in others | sampling:
            raise TypeError(
                f"a {kind} cannot be made again: its constructor takes {name}, and it has no attribute of that name. "
                f"Set self.{name} in its __init__"
            )
    refused = sampling.keys() - names.keys()
    if refused:
        raise TypeError(
            f"a {kind} cannot be made again: its constructor does not take {', '.join(sorted(refused))}. Let its "
            "__init__ take **kwargs, and hand them on"
        )
    return others | sampling


def sampling_of(loader: TorchDataLoader[Any]) -> dict[str, Any]:
    """The part of `arguments_of` that says which samples there are: the arguments that exclude each other left out."""
    if is_iterable(loader):
        return {"dataset": loader.dataset, "batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_sampler is None:
        return {"dataset": loader.dataset, "batch_size": None, "sampler": loader.sampler}
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        return {"dataset": loader.dataset, "batch_sampler": loader.batch_sampler}
    return {
        "dataset": loader.dataset,
        "batch_size": loader.batch_size,
        "sampler": loader.sampler,
        "drop_last": loader.drop_last,
    }


def is_iterable(loader: TorchDataLoader[Any]) -> bool:
    """Whether its dataset is read from the front: as the loader sees it, for which `async for` is reading, too."""
    return bool(loader._dataset_kind == _DatasetKind.Iterable)


def with_samples_of(sampling: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments with another choice of samples (which `sampling_of` has given, or which is like it)."""
    return {name: value for name, value in arguments.items() if name not in SAMPLING} | sampling


def _parameters(kind: type) -> dict[str, bool]:
    """The names of a loader's arguments, and whether each has to be given. `**kwargs` are the base class's."""
    found: dict[str, bool] = {}
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = [p for p in inspect.signature(vars(base)["__init__"]).parameters.values() if p.name != "self"]
        for parameter in parameters:
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                found.setdefault(parameter.name, parameter.default is parameter.empty)
        if base is TorchDataLoader or not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found
