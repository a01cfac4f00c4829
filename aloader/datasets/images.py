"""Images in folders that are named for what they show."""

from __future__ import annotations

import os
from typing import Final

from aloader.datasets.decoders import Decode, rgb
from aloader.datasets.folders import ObjectFolder
from aloader.datasets.listing import Wanted
from aloader.datasets.reader import Transform
from aloader.storage import Store

#: torchvision's.
EXTENSIONS: Final = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class ImageFolder(ObjectFolder):
    """Sample `i` is `(transform(image), label)`, from objects `<class>/…/<name>.<extension of an image>`.

    As torchvision's: classes are the names of the folders at the top, sorted, and labels their places in that order;
    samples are in the same order too. `root` may also be a URL or a store: `"s3://bucket/imagenet/train"`.

    - `classes: list[str]`, `class_to_idx: dict[str, int]`, `targets`; `samples`, a sequence of pairs (key, label) that
      takes a few bytes for each beside its key, and is shared by workers
    - `fingerprint` changes with the keys, their sizes and their versions.
    - `decode` makes an image of bytes: by default a `PIL.Image` in RGB (needs the extra `images`); None leaves the
      bytes; names are those of `ObjectDataset`. It runs in `decode_threads` threads beside the event loop and
      **must not draw random numbers**.
    - `transform` and `target_transform` run on the loop's thread and may draw them.

    The constructor lists the store, once: workers get the listing with the dataset. It blocks meanwhile; from a
    coroutine: `await asyncio.to_thread(ImageFolder, "s3://…")`. With `manifest`, a path or URL of a file, the listing
    is read from there if it exists, and written there if not. `FileNotFoundError` if there are no images in folders,
    `StorageError` if the store cannot be listed.

    Enter it (`async with`) before `await dataset[i]`; a loader does so in each worker. Errors name the key.
    """

    _kind = "images"
    _expected = f"keys like 'cat/001.jpg': the folder is the class; extensions {' '.join(EXTENSIONS)}"

    def __init__(
        self,
        root: str | os.PathLike[str] | Store,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        *,
        decode: str | Decode | None = rgb,
        manifest: str | os.PathLike[str] | None = None,
        decode_threads: int = 1,
    ) -> None:
        super().__init__(
            root,
            transform,
            target_transform,
            wanted=Wanted(suffixes=EXTENSIONS),
            decode=decode,
            manifest=manifest,
            decode_threads=decode_threads,
        )
