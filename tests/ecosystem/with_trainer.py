"""The Trainer with aloader's loaders: training, evaluation, prediction, and going on in the middle of an epoch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

import aloader
from aloader.integrations.transformers import LoaderMixin
from tests.ecosystem.kit import DATASETS, Seen, save, without_torch_loader

EPOCHS = 2
SAMPLES, EVALUATED = 48, 21


class Model(torch.nn.Module):
    """Notes what it is given, for training and otherwise."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(1, 1)
        self.trained, self.evaluated = Seen(), Seen()

    def forward(self, x: torch.Tensor, labels: torch.Tensor, **stamps: torch.Tensor) -> dict[str, torch.Tensor]:
        (self.trained if self.training else self.evaluated).add(stamps)
        found = self.linear(x).flatten()
        return {"loss": ((found - labels) ** 2).mean(), "logits": found}


class OurTrainer(LoaderMixin, Trainer):
    """Nothing else is needed."""

    @property
    def loader_arguments(self) -> dict[str, Any]:
        return {"memory_limit": "1GiB"}


def trainer(folder: Path, dataset: Any, workers: int, **arguments: Any) -> OurTrainer:
    settings = TrainingArguments(
        str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        dataloader_num_workers=workers,
        dataloader_pin_memory=False,
        dataloader_persistent_workers=workers > 0,
        remove_unused_columns=False,
        use_cpu=True,
        ddp_backend="gloo" if "RANK" in os.environ else None,
        report_to=[],
        disable_tqdm=True,
        **arguments,
    )
    return OurTrainer(Model(), settings, train_dataset=dataset(SAMPLES), eval_dataset=dataset(EVALUATED))


def trained(folder: Path, dataset: Any, workers: int) -> dict[str, Any]:
    """Train and evaluate; then once more from the checkpoint in the second epoch; then predict."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    steps = SAMPLES // (4 * 2 * world)  # in an epoch
    ours = trainer(folder, dataset, workers, eval_strategy="epoch", save_steps=steps + 1)
    ours.train()
    model, loader = ours.model, ours.get_eval_dataloader()
    again = trainer(folder, dataset, workers, save_strategy="no")
    again.train(resume_from_checkpoint=str(folder / f"checkpoint-{steps + 1}"))
    predicted = again.predict(dataset(EVALUATED))
    return {
        "trained": model.trained.report(),
        "evaluated": model.evaluated.report(),
        "rest": again.model.trained.report(),
        "predictions": len(predicted.predictions),
        "steps": [ours.state.global_step, again.state.global_step, EPOCHS * steps],
        "weights": [m.linear.weight.item() for m in (model, again.model)],
        "kept": loader is ours.get_eval_dataloader() if workers else None,
        "kind": type(loader.base_dataloader) is aloader.DataLoader,
        "arguments": [loader.num_workers, loader.memory_limit, loader.explicit_prefetch],
    }


def main() -> None:
    folder = Path(sys.argv[1])
    with without_torch_loader():
        report = {name: trained(folder / name, dataset, 2) for name, dataset in DATASETS.items()}
        report["light"] = trained(folder / "light", DATASETS["async"], 0)
    save(report)


if __name__ == "__main__":
    main()
