"""Lightning with aloader's loader, which it makes again with a sampler of its own where there are several processes."""

from __future__ import annotations

import os
from typing import Any

import lightning
import torch
from lightning.fabric import Fabric

import aloader
from tests.ecosystem.kit import DATASETS, Seen, save, without_torch_loader

EPOCHS = 2
SAMPLES, EVALUATED = 48, 24
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


def loader(dataset: Any, n: int, workers: int = 2, **arguments: Any) -> aloader.DataLoader[Any]:
    return aloader.DataLoader(dataset(n), batch_size=4, num_workers=workers, memory_limit="1GiB", **arguments)


class Model(lightning.LightningModule):
    """Notes what it is given. With `hook`, it makes the loader itself."""

    def __init__(self, hook: Any = None) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.trained, self.evaluated, self.predicted = Seen(), Seen(), Seen()
        self.hook = hook
        self.used: list[Any] = []

    def train_dataloader(self) -> Any:
        return self.hook()

    def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
        self.trained.add(batch)
        return torch.nn.functional.mse_loss(self.linear(batch["x"]).flatten(), batch["labels"])

    def validation_step(self, batch: dict[str, Any], _: int) -> None:
        self.evaluated.add(batch)

    def predict_step(self, batch: dict[str, Any], _: int) -> None:
        self.predicted.add(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_train_epoch_end(self) -> None:
        self.used.append(self.trainer.train_dataloader)


def trainer() -> lightning.Trainer:
    return lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=WORLD,
        strategy="ddp" if WORLD > 1 else "auto",
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def described(used: Any) -> dict[str, Any]:
    """The loader that was iterated, which need not be the one that was given."""
    return {
        "kind": type(used) is aloader.DataLoader,
        "sampler": type(used.sampler).__name__,
        "arguments": [used.num_workers, used.memory_limit, used.concurrency, used.explicit_prefetch],
    }


def fitted(dataset: Any, **arguments: Any) -> dict[str, Any]:
    """Trained and validated by loaders that are handed over, then predicted."""
    model, runner = Model(), trainer()
    train = loader(dataset, SAMPLES, shuffle=True, **arguments)
    runner.fit(model, train, loader(dataset, EVALUATED, **arguments))
    runner.predict(model, loader(dataset, EVALUATED, **arguments))
    return {
        "trained": model.trained.report(),
        "evaluated": model.evaluated.report(),
        "predicted": model.predicted.report(),
        "steps": runner.global_step,
        "used": described(model.used[-1]),
    }


def fitted_by_hook(dataset: Any, **arguments: Any) -> dict[str, Any]:
    """Trained by a loader that the module makes: Lightning notes how, and makes it again in the same way."""
    model, runner = Model(lambda: loader(dataset, SAMPLES, shuffle=True, **arguments)), trainer()
    runner.fit(model)
    return {"trained": model.trained.report(), "steps": runner.global_step, "used": described(model.used[-1])}


def with_fabric(dataset: Any, **arguments: Any) -> dict[str, Any]:
    """One epoch of a loop of one's own."""
    fabric, seen = Fabric(accelerator="cpu", devices=WORLD, strategy="ddp" if WORLD > 1 else "auto"), Seen()
    fabric.launch()
    given = fabric.setup_dataloaders(loader(dataset, SAMPLES, shuffle=True, **arguments))
    for batch in given:
        seen.add(batch)
    return {"trained": seen.report(), "used": described(given._dataloader)}


def main() -> None:
    report: dict[str, Any] = {}
    with without_torch_loader():
        report["map"] = fitted(DATASETS["map"])
        report["async"] = fitted(DATASETS["async"], concurrency=8)
        report["hook"] = fitted_by_hook(DATASETS["async"], concurrency=8)
        report["light"] = fitted_by_hook(DATASETS["async"], workers=0, concurrency=8)
        report["fabric"] = with_fabric(DATASETS["async"], concurrency=8)
    save(report)


if __name__ == "__main__":
    main()
