"""Whether a state belongs to a loader: what it was taken of, and what differs, in words."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler

from aloader.settings import Settings, workers_of
from aloader.state.writing import KEYS, VERSION


def fingerprint(loader: Settings) -> dict[str, Any]:
    """What a state is of: the kind of dataset, its length, batches, sampler, and what it says of itself by an attribute
    (or a method) `fingerprint`: a text, say, that changes with what is in it."""
    sampler = loader._index_sampler
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    length = None if loader.is_iterable else _length(loader.dataset)
    data = {
        "kind": "iterable" if loader.is_iterable else "map",
        "length": length,
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
        "sampler": None if loader.is_iterable else type(inner).__name__,
        "fingerprint": _said(loader.dataset),
        "world_size": _shared_by(inner) or loader.ranks.world_size,
    }
    if loader.is_iterable:
        data |= {"rank": loader.ranks.rank, "num_workers": max(1, workers_of(loader))}
    return data


def check(loader: Settings, state: dict[str, Any], *, strict: bool) -> None:
    """Raise ValueError where a state is none of ours, or of other data, and `strict` says that this matters."""
    version = state.get("version")
    if version != VERSION or not state.keys() >= KEYS:
        raise ValueError(
            f"this is no state of aloader.DataLoader's version {VERSION}: it has the keys {sorted(map(str, state))[:8]}"
            + (f" and version {version!r}" if version is not None else "")
            + ". States of torchdata's StatefulDataLoader have another layout, and cannot be read"
        )
    mine, theirs = fingerprint(loader), state["data"]
    wrong = []
    if strict:
        wrong = [_difference(name, theirs.get(name), mine[name]) for name in mine if _differs(name, mine, state)]
    if strict and state["seed"] != loader.seed:
        wrong.append(_difference("seed", state["seed"], loader.seed))
    if mine["kind"] != theirs.get("kind"):
        wrong = [_difference("kind", theirs.get("kind"), mine["kind"])]
    if not strict and loader.is_iterable and mine["num_workers"] != theirs.get("num_workers"):
        wrong.append(_difference("num_workers", theirs.get("num_workers"), mine["num_workers"]))
    if wrong:
        raise ValueError("this state does not fit this loader: " + "; ".join(wrong) + ". " + _remedy(mine["kind"]))


def _differs(name: str, mine: dict[str, Any], state: dict[str, Any]) -> bool:
    theirs = state["data"]
    if mine[name] == theirs.get(name):
        return False
    elastic = "step" in state["sampler"]  # its position counts samples of all ranks together
    if name == "world_size" and mine["kind"] == "map":
        return not elastic or "beyond" in state
    if name == "batch_size" and elastic and "beyond" not in state:
        return _step(mine) != _step(theirs)
    return True


def _step(data: dict[str, Any]) -> int:
    """How many samples all ranks together use up with a batch, or a single sample, each."""
    return int((data.get("batch_size") or 1) * data.get("world_size", 1))


def _difference(name: str, then: Any, now: Any) -> str:
    return f"{name} was {then!r} and is {now!r} here"


def _remedy(kind: str) -> str:
    if kind == "iterable":
        return (
            "An iterable dataset is shared out by its own code, so it goes on only with as many workers and ranks as "
            "before, each with its own state"
        )
    return (
        "Make the loader as it was made then; or, if you know that the order is the same all the same, "
        "load_state_dict(state, strict=False)"
    )


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None


def _shared_by(sampler: Any) -> int | None:
    """Among how many ranks a sampler shares its order out, in our words or in torch's, if it says so."""
    world_size = getattr(sampler, "world_size", getattr(sampler, "num_replicas", None))
    return world_size if type(world_size) is int else None


def _said(dataset: Any) -> Any:
    said = getattr(dataset, "fingerprint", None)
    said = said() if callable(said) else said
    return said if said is None or isinstance(said, str | int | float) else repr(said)
