"""Loaders prepared for accelerate, in as many processes as there are: what each process got, and from whom."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import skip_first_batches as their_skip_first_batches
from accelerate.utils import DataLoaderConfiguration, set_seed

import aloader
from aloader.integrations.accelerate import prepare, skip_first_batches
from tests.ecosystem.kit import DATASETS, AsyncStream, Seen, Stamped, Stream, save, without_torch_loader

EPOCHS = 2

#: (arguments of the loader, number of samples, configuration of accelerate): ours and theirs have to agree in all.
WAYS: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    "even": ({"batch_size": 4}, 48, {}),
    "remainder": ({"batch_size": 4}, 37, {}),
    "few": ({"batch_size": 4}, 3, {}),
    "drop_last": ({"batch_size": 4, "drop_last": True}, 37, {}),
    "shuffle": ({"batch_size": 4, "shuffle": True}, 37, {}),
    "seedable": ({"batch_size": 4, "shuffle": True}, 37, {"use_seedable_sampler": True, "data_seed": 5}),
    "split": ({"batch_size": 4, "shuffle": True}, 37, {"split_batches": True}),
    "uneven": ({"batch_size": 4}, 37, {"even_batches": False}),
    "dispatched": ({"batch_size": 4}, 37, {"dispatch_batches": True}),
    "batch sampler": ({"batch_sampler": [[1, 2], [3, 4], [5, 6], [7, 8]]}, 37, {"even_batches": False}),
}


#: The same for datasets that are read from the front; a share of theirs, or the whole in the first process.
STREAMS: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    "stream": ({"batch_size": 4}, 37, {}),
    "shared stream": ({"batch_size": 4}, 37, {"dispatch_batches": False}),
    "few of a stream": ({"batch_size": 4}, 3, {"dispatch_batches": False}),
    "whole batches of a stream": ({"batch_size": 4, "drop_last": True}, 37, {"dispatch_batches": False}),
    "split stream": ({"batch_size": 4}, 37, {"dispatch_batches": False, "split_batches": True}),
}


def accelerator(**configuration: Any) -> Accelerator:
    config = DataLoaderConfiguration(**configuration)
    return Accelerator(cpu=True, gradient_accumulation_steps=3, dataloader_config=config)


def run(acc: Accelerator, loader: Any, epochs: int = EPOCHS) -> list[Any]:
    """The indices of every batch, and what accelerate says in it; then the loader's own figures."""
    found: list[Any] = []
    for _ in range(epochs):
        for batch in loader:
            state = acc.gradient_state
            found.append([batch["index"].tolist(), state.end_of_dataloader, state.remainder])
    return [*found, *figures(acc, loader)]


def figures(acc: Accelerator, loader: Any) -> list[Any]:
    """accelerate itself does not know `total_batch_size` for every sampler."""
    try:
        total = loader.total_batch_size
    except (AttributeError, TypeError):
        total = None
    return [total, len(loader), loader.iteration, acc.gradient_state.in_dataloader]


def agreement(ours: Callable[[Accelerator, Any], Any], theirs: bool) -> dict[str, Any]:
    """What every way gives."""
    found = {}
    for name, (arguments, n, configuration) in WAYS.items():
        acc = accelerator(**configuration)
        set_seed(7)
        kind: Any = torch.utils.data.DataLoader if theirs else aloader.DataLoader
        loader = ours(acc, kind(Stamped(n), **arguments))
        found[name] = run(acc, loader)
    return found


def streamed(dataset: Any, ours: Callable[[Accelerator, Any], Any], kind: Any, **more: Any) -> dict[str, Any]:
    """The same for streams."""
    found = {}
    for name, (arguments, n, configuration) in STREAMS.items():
        acc = accelerator(**configuration)
        found[name] = run(acc, ours(acc, kind(dataset(n), **arguments, **more)))
    return found


def resumed(skip: Callable[[Any, int], Any], ours: Callable[[Accelerator, Any], Any], kind: Any) -> list[Any]:
    """The rest of the second epoch."""
    acc = accelerator()
    set_seed(7)
    loader = ours(acc, kind(Stamped(37), batch_size=4, shuffle=True))
    set_seed(8)
    return [[batch["index"].tolist() for batch in skip(loader, 2)], [b["index"].tolist() for b in loader]]


def theirs(acc: Accelerator, loader: Any) -> Any:
    return acc.prepare(loader)


async def with_async_for(acc: Accelerator, loader: Any) -> list[Any]:
    """As `run`."""
    found: list[Any] = []
    async with loader:
        for _ in range(EPOCHS):
            async for batch in loader:
                state = acc.gradient_state
                found.append([batch["index"].tolist(), state.end_of_dataloader, state.remainder])
    return [*found, *figures(acc, loader)]


async def cancelled(loader: Any) -> list[int]:
    """One epoch in which every wait is cancelled many times."""
    found, batches = [], aiter(loader)
    async with loader:
        while True:
            try:
                async with asyncio.timeout(0.001):
                    found += (await anext(batches))["index"].tolist()
            except TimeoutError:
                continue
            except StopAsyncIteration:
                return found


def trained(dataset: Any, asynchronous: bool) -> dict[str, Any]:
    """A model, by the book: accumulate, backward, step; and metrics of a last batch that is not full."""
    acc, seen = accelerator(), Seen()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = prepare(acc, aloader.DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2))
    model, optimizer, again = acc.prepare(model, optimizer, loader)
    synchronized, gathered, losses = [], [], []

    def step(batch: dict[str, Any]) -> None:
        seen.add(batch)
        with acc.accumulate(model):
            loss = ((model(batch["x"]).flatten() - batch["labels"]) ** 2).mean()
            acc.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            synchronized.append(acc.sync_gradients)
            losses.append(loss.item())
        gathered.extend(acc.gather_for_metrics(batch["index"]).tolist())

    async def epoch() -> None:
        async for batch in again:
            step(batch)

    if asynchronous:
        asyncio.run(epoch())
    else:
        for batch in again:
            step(batch)
    loader.close()
    return seen.report() | {
        "let through": again is loader and acc._dataloaders == [loader],
        "synchronized": synchronized,
        "gathered": gathered,
        "steps": len(losses),
    }


def stray() -> str:
    """What is said where the loader is given to accelerate alone, which then iterates torch's."""
    try:
        next(iter(accelerator().prepare(aloader.DataLoader(DATASETS["async"](), num_workers=1))))
    except TypeError as error:
        return str(error)
    return "nothing"


def main() -> None:
    report: dict[str, Any] = {
        "theirs": agreement(theirs, theirs=True),
        "their rest": resumed(their_skip_first_batches, theirs, torch.utils.data.DataLoader),
        "their streams": streamed(Stream, theirs, torch.utils.data.DataLoader),
    }
    with without_torch_loader():
        report["streams"] = streamed(Stream, prepare, aloader.DataLoader)
        report["async streams"] = streamed(AsyncStream, prepare, aloader.DataLoader)
        report["async streams of a worker"] = streamed(AsyncStream, prepare, aloader.DataLoader, num_workers=1)
        report["ours"] = agreement(prepare, theirs=False)
        report["our rest"] = resumed(skip_first_batches, prepare, aloader.DataLoader)
        for name in ("remainder", "seedable", "split"):
            arguments, n, configuration = WAYS[name]
            acc = accelerator(**configuration)
            set_seed(7)
            loader = prepare(acc, aloader.DataLoader(DATASETS["async"](n), **arguments))
            report[f"async for, {name}"] = asyncio.run(with_async_for(acc, loader))
        acc = accelerator(dispatch_batches=True)
        loader = prepare(acc, aloader.DataLoader(DATASETS["async"](37), batch_size=4, num_workers=2))
        report["dispatched, async"] = run(acc, loader)
        loader.close()
        for name, dataset in DATASETS.items():
            for asynchronous in (False, True):
                report[f"trained, {name}, {asynchronous}"] = trained(dataset(37), asynchronous)
        loader = prepare(accelerator(), aloader.DataLoader(DATASETS["async"](48), batch_size=4))
        report["cancelled"] = asyncio.run(cancelled(loader))
        copy = pickle.loads(pickle.dumps(prepare(accelerator(), aloader.DataLoader(Stamped(48), batch_size=4))))
        report["pickled"] = [batch["index"].tolist() for batch in copy]
    report["stray"] = stray()
    save(report)


if __name__ == "__main__":
    main()
