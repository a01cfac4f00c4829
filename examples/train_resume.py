"""Training that may be stopped at any moment, and goes on after its last batch, on any number of ranks.

    torchrun --nproc-per-node 4 examples/train_resume.py --folder run    and: kill -TERM <pid of torchrun>
    torchrun --nproc-per-node 2 examples/train_resume.py --folder run
    python examples/train_resume.py --folder run

Model, optimizer and the loader's state are saved on SIGTERM and at the end of each epoch. The loader's state is a small
JSON file, the same for all ranks, and says nothing of how many there were. With `--audit FILE` each rank appends a line
for each batch that it has trained on, with its samples' indices: so it can be seen that every epoch had every sample
exactly once (`ends="even"` gives no sample twice, and every rank equally many batches).

torchrun sends SIGTERM to the process group of every rank, waits 30 seconds (`--shutdown-timeout`), and kills what is
left. It then ends with status 1 itself, whatever the ranks did: they end with 0, and what counts is the folder.
aloader's workers are in a group of their own: those that torch's loader forks would be gone before the last batch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from train_ddp import digits_in, is_first, network, process_group

from aloader import DataLoader
from aloader.datasets import ImageFolder
from aloader.sampling import ShuffledSampler


class Stop:
    """Whether to stop, as all ranks see it: a signal arrives at each of them at another moment."""

    def __init__(self, device: torch.device) -> None:
        self._asked = False
        self._device = device
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        self._asked = True

    def agreed(self) -> bool:
        """Whether any rank has been asked to. Every rank calls it after every step, and all get the same answer.

        If each went by its own signal, one would stop after step 17 while another waits for it in step 18, for ever.
        """
        anybody = torch.tensor(int(self._asked), device=self._device)
        if dist.is_initialized():
            dist.all_reduce(anybody, dist.ReduceOp.MAX)
        return bool(anybody)


class Checkpoints:
    """`step-00000123/` for each step that was saved, of which only the last is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, step: int, training: dict[str, Any], loader: dict[str, Any]) -> None:
        """All of it or nothing: a checkpoint has its name only when everything is in it. Rank 0 writes for all."""
        name = self.folder / f"step-{step:08}"
        if not is_first() or name.exists():
            return
        unfinished = self.folder / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        torch.save(training, unfinished / "training.pt")
        (unfinished / "loader.json").write_text(json.dumps(loader))
        unfinished.rename(name)
        for old in sorted(self.folder.glob("step-*"))[:-1]:
            shutil.rmtree(old)

    def last(self, device: torch.device) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
        """Step, training and loader's state; None at the very beginning."""
        found = sorted(self.folder.glob("step-*"))
        if not found:
            return None
        training = torch.load(found[-1] / "training.pt", map_location=device, weights_only=True)
        loader = json.loads((found[-1] / "loader.json").read_text())
        return int(found[-1].name.removeprefix("step-")), training, loader


class Indexed:
    """A dataset whose samples come with their index. As async as the one inside, whose clients it opens."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    async def __aenter__(self) -> Indexed:
        await self.dataset.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.dataset.__aexit__(*exc)

    def __len__(self) -> int:
        return len(self.dataset)

    async def __getitem__(self, index: int) -> tuple[int, torch.Tensor, int]:
        return index, *await self.dataset[index]


def audit(file: Path | None, **line: Any) -> None:
    """One line more, in one piece: several ranks write to the file at once."""
    if file is not None:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, json.dumps(line).encode() + b"\n")
        os.close(descriptor)


async def train(ds: ImageFolder, device: torch.device, options: argparse.Namespace) -> None:
    stop, checkpoints, model = Stop(device), Checkpoints(options.folder), network(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    sampler = ShuffledSampler(len(ds), seed=0, rank=rank, world_size=world_size, ends="even")
    loader = DataLoader(Indexed(ds), batch_size=options.batch_size, sampler=sampler, num_workers=options.workers)
    plain = getattr(model, "module", model)  # without DistributedDataParallel: the next run may have another number
    step, saved = 0, checkpoints.last(device)
    if saved is not None:
        step, training, state = saved
        plain.load_state_dict(training["model"])
        optimizer.load_state_dict(training["optimizer"])
        loader.load_state_dict(state)

    def save() -> None:
        training = {"model": plain.state_dict(), "optimizer": optimizer.state_dict()}
        checkpoints.save(step, training, loader.state_dict())

    async with loader:
        for epoch in range(loader.epoch, options.epochs):
            loader.set_epoch(epoch)
            async for indices, images, labels in loader:
                loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                audit(options.audit, epoch=epoch, step=step, rank=rank, indices=indices.tolist())
                if is_first():
                    print(f"epoch {epoch}  step {step}  loss {loss.item():.3f}", flush=True)
                if stop.agreed():
                    save()
                    return
            save()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for what is saved")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "digits")
    parser.add_argument("--audit", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the network is small, and ranks and workers want the other cores
    with process_group() as device:
        asyncio.run(train(digits_in(arguments.data), device, arguments))
