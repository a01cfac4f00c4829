"""Images in folders that are named for what they show."""

from __future__ import annotations

import importlib.util
import io
import os
import posixpath
from typing import Any, Final, Self

from aloader.datasets.reader import Decode, ObjectReader, Transform, check_callable, keys_of
from aloader.storage import Store

#: torchvision's.
EXTENSIONS: Final = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def rgb(data: bytes) -> Any:
    """A `PIL.Image.Image` of mode RGB, read in full."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


class ImageFolder:
    """Sample `i` is `(transform(image), label)`, from objects `<class>/…/<name>.<extension of an image>`.

    As torchvision's: classes are the names of the folders at the top, sorted, and labels their places in that order;
    samples are in the same order too. `root` may also be a URL or a store: `"s3://bucket/imagenet/train"`.

    - `classes: list[str]`, `class_to_idx: dict[str, int]`, `samples: list[tuple[str, int]]` (key, label), `targets`
    - `decode` makes an image of bytes: by default a `PIL.Image` in RGB (needs the extra `images`); None leaves the
      bytes. It runs in `decode_threads` threads beside the event loop and **must not draw random numbers**.
    - `transform` and `target_transform` run on the loop's thread and may draw them.

    The constructor lists the store, once: workers get the listing with the dataset. It blocks meanwhile; from a
    coroutine: `await asyncio.to_thread(ImageFolder, "s3://…")`. `FileNotFoundError` if there are no images in folders,
    `StorageError` if the store cannot be listed.

    Enter it (`async with`) before `await dataset[i]`; a loader does so in each worker. Errors name the key.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | Store,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        *,
        decode: Decode | None = rgb,
        decode_threads: int = 1,
    ) -> None:
        check_callable("transform", transform)
        check_callable("target_transform", target_transform)
        if decode is rgb and importlib.util.find_spec("PIL") is None:
            raise ModuleNotFoundError('decoding images needs Pillow: pip install "aloader[images]", or pass decode=')
        self._reader = ObjectReader(root, decode, decode_threads)
        self.transform = transform
        self.target_transform = target_transform
        self.classes, self.samples = _classes_and_samples(self.store)

    @property
    def store(self) -> Store:
        return self._reader.store

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[int]:
        """The label of every sample."""
        return [label for _, label in self.samples]

    def __repr__(self) -> str:
        return f"ImageFolder({self.store!r}, {len(self.samples)} images in {len(self.classes)} classes)"

    def __len__(self) -> int:
        return len(self.samples)

    async def __getitem__(self, index: int) -> tuple[Any, Any]:
        key, label = self.samples[index]
        image = await self._reader.read(key)
        return self._reader.apply(self.transform, image, key), self._reader.apply(self.target_transform, label, key)

    async def __aenter__(self) -> Self:
        await self._reader.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._reader.leave()


def _classes_and_samples(store: Store) -> tuple[list[str], list[tuple[str, int]]]:
    keys = keys_of(store)
    images = [key for key in keys if "/" in key and key.lower().endswith(EXTENSIONS)]
    if not images:
        there = f"there are {len(keys)} other objects, {keys[0]!r} first" if keys else "it is empty"
        raise FileNotFoundError(
            f"no images in folders in {store!r}: {there}. Expected keys like 'cat/001.jpg': the folder is the class; "
            f"extensions {' '.join(EXTENSIONS)}"
        )
    classes = sorted({key.partition("/")[0] for key in images})
    labels = {name: label for label, name in enumerate(classes)}
    # As torchvision walks: class after class, in each folder the files by name before the files of its subfolders.
    images.sort(key=lambda key: (key.partition("/")[0], *posixpath.split(key)))
    return classes, [(key, labels[key.partition("/")[0]]) for key in images]
