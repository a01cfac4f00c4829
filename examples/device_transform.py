"""Images go to the device as bytes and become floats there: `device_transform` crops, flips and normalises a batch.

    python examples/device_transform.py                 on a GPU where there is one, else on the CPU
    python examples/device_transform.py --device cpu
    python examples/device_transform.py --decode        JPEGs, decoded on the device; needs torchvision and a GPU

Two runs with the same seed, one with workers and one without, give the same bytes: what the transform draws from
torch's generators is a function of seed, epoch and the batch's place. Exit status 1 if they differ.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from aloader import DataLoader

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # ImageNet's, of bytes
STORED, SHOWN = 72, 64  # edges of the images, before and after cropping


class Scenes:
    """Image i, uint8 of shape (3, 72, 72), and its label. Made when asked for, the same each time."""

    def __init__(self, count: int = 96) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        ramp = torch.arange(3 * STORED * STORED) * (index + 1)
        return (ramp % 251).to(torch.uint8).view(3, STORED, STORED), index % 10


class Jpegs(Scenes):
    """The same images as the bytes of JPEG files. Arrays, since torchvision's decoder wants its input on the CPU:
    what is no tensor is left where it is."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        image, label = super().__getitem__(index)
        file = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "jpeg", quality=90)
        return np.frombuffer(file.getvalue(), np.uint8).copy(), label


def apart(samples: list[tuple[Any, int]]) -> tuple[list[Any], torch.Tensor]:
    """Files have different lengths: they stay a list."""
    files, labels = zip(*samples, strict=True)
    return list(files), torch.tensor(labels)


def cropped(images: torch.Tensor, edge: int) -> torch.Tensor:
    """A window of each image at a place of its own. What comes is channels last in memory, by itself."""
    count, device = len(images), images.device
    most = images.shape[2] - edge + 1
    rows, columns = (torch.randint(most, (2, count, 1), device=device) + torch.arange(edge, device=device)).unbind()
    each = torch.arange(count, device=device)[:, None, None]
    return images[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def flipped(images: torch.Tensor) -> torch.Tensor:
    """Half of the images, mirrored. `torch.where` needs no answer from the device; `if` and masks would wait for it."""
    chosen = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(chosen, images.flip(3), images)


class Augment:
    """Bytes to floats of mean 0 and deviation 1, cropped and flipped at random. Constants go to the device once."""

    def __init__(self, device: str) -> None:
        self.mean, self.std = (torch.tensor(value, device=device).view(1, 3, 1, 1) for value in (MEAN, STD))

    def __call__(self, batch: Any) -> Any:
        images, labels = batch
        images = flipped(cropped(images, SHOWN)).to(torch.float32, memory_format=torch.channels_last)
        return images.sub_(self.mean).div_(self.std), labels


class Decode(Augment):
    """Before that, a list of files to images. The decoder takes all of them in one call."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.device = device

    def __call__(self, batch: Any) -> Any:
        from torchvision.io import ImageReadMode, decode_jpeg

        files, labels = batch
        images = decode_jpeg([torch.from_numpy(file) for file in files], ImageReadMode.RGB, device=self.device)
        return super().__call__((torch.stack(images), labels))


def digest(dataset: Any, device: str, transform: Callable[[Any], Any], collate: Any, workers: int) -> str:
    """An epoch's bytes, as one number."""
    settings: Any = {"batch_size": 16, "shuffle": True, "num_workers": workers, "collate_fn": collate}
    found = hashlib.sha256()
    with DataLoader(dataset, seed=1, device=device, device_transform=transform, **settings) as loader:
        for images, labels in loader:
            assert images.dtype == torch.float32
            assert images.is_contiguous(memory_format=torch.channels_last)
            for tensor in (images, labels):
                found.update(tensor.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def decodes_on(device: str) -> str:
    """Why JPEGs cannot be decoded there, "" if they can."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        return "torchvision is not installed"
    return "" if torch.device(device).type == "cuda" else "that needs a GPU"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--decode", action="store_true", help="JPEG files, decoded on the device")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    dataset, transform, collate = Scenes(), Augment(options.device), None
    if options.decode:
        if why := decodes_on(options.device):
            print(f"nothing is decoded on {options.device}: {why}")
            return 0
        dataset, transform, collate = Jpegs(), Decode(options.device), apart
    runs = [digest(dataset, options.device, transform, collate, workers) for workers in (options.workers, 0)]
    print(f"{len(dataset)} images on {options.device}")
    print(f"{options.workers} workers {runs[0]}, without workers {runs[1]}")
    print("the same bytes" if runs[0] == runs[1] else "DIFFERENT BYTES")
    return int(runs[0] != runs[1])


if __name__ == "__main__":
    sys.exit(main())
