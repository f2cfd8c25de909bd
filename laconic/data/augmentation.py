"""Random augmentation of images in memory, such as the crop and flip of the CIFAR-10 literature: `crop:4+flip`."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass as plain_dataclass
from dataclasses import fields
from typing import ClassVar

import torch
from pydantic import PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from laconic.core.errors import ConfigError
from laconic.core.spelling import Choice, choose
from laconic.data.federated import ClientData, FederatedData, Indices
from laconic.data.generated import GeneratedData


@dataclass(frozen=True)
class Transform(Choice):
    """A random change of images. It gets compact values, before normalization."""

    @abstractmethod
    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change each image [channels, height, width] of a batch on its own."""


@dataclass(frozen=True)
class RandomCrop(Transform):
    """Pad by zeros (black) on all sides, and crop to the original size at a random place."""

    name: ClassVar[str] = "crop"
    padding: PositiveInt = 4

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, channels, height, width = images.shape
        padded = torch.nn.functional.pad(images, [self.padding] * 4)
        corners = torch.randint(2 * self.padding + 1, (2, count, 1), generator=generator)
        rows, columns = (corners[i] + torch.arange(size) for i, size in enumerate((height, width)))
        examples, depth = torch.arange(count), torch.arange(channels)
        index = (examples[:, None, None, None], depth[:, None, None], rows[:, None, :, None], columns[:, None, None, :])
        return padded[tuple(part.to(images.device) for part in index)]


@dataclass(frozen=True)
class RandomFlip(Transform):
    """Mirror each image, left to right, with probability 1/2."""

    name: ClassVar[str] = "flip"

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        mirrored = torch.randint(2, (len(images), 1, 1, 1), generator=generator, dtype=torch.bool)
        return torch.where(mirrored.to(images.device), images.flip(-1), images)


TRANSFORMS: dict[str, type[Transform]] = {cls.name: cls for cls in (RandomCrop, RandomFlip)}


@plain_dataclass(frozen=True)
class Augmentation:
    """Transforms that are applied one after the other.

    >>> str(parse_augmentation("crop:4+flip"))
    'crop+flip'
    """

    transforms: tuple[Transform, ...]

    def __str__(self) -> str:
        return "+".join(map(str, self.transforms))

    def __call__(self, images: Tensor, seed: int) -> Tensor:
        """Change each image of a batch. All randomness comes from the seed."""
        generator = torch.Generator().manual_seed(seed)
        for transform in self.transforms:
            images = transform(images, generator)
        return images


def parse_augmentation(text: str) -> Augmentation:
    """Read `crop[:PADDING]` and `flip`, joined by +."""
    try:
        return Augmentation(tuple(choose(part, TRANSFORMS) for part in text.split("+")))
    except ValueError as error:
        raise ConfigError(f"augment = '{text}': {error}") from None


@plain_dataclass(frozen=True, eq=False)
class AugmentedImages(FederatedData):
    """Images in memory whose training batches are augmented. Evaluations get them unchanged."""

    augmentation: Augmentation = Augmentation(())

    def augmented(self, client: int, positions: Indices, dtype: torch.dtype, seed: int) -> tuple[Tensor, ...]:
        """A client's examples at `positions`, augmented."""
        indices = torch.from_numpy(self.clients[client][positions])
        return self.examples.batch(indices, dtype, lambda images: self.augmentation(images, seed))

    def fingerprint(self) -> str:
        """Return a hash of examples, split and augmentation."""
        return f"{super().fingerprint()}+{self.augmentation}"


def augment(data: ClientData, augmentation: str | Augmentation) -> ClientData:
    """Return the same images with augmented training batches.

    Args:
        data: Images in memory.
        augmentation: `crop[:PADDING]` (a random crop after padding), `flip` (a random horizontal flip), or both joined by +.

    >>> from laconic.data import load
    >>> augment(load("digits"), "crop:1+flip").augmentation
    Augmentation(transforms=(RandomCrop(padding=1), RandomFlip()))
    """
    chosen = parse_augmentation(augmentation) if isinstance(augmentation, str) else augmentation
    if len(data.input_shape) != 3:
        raise ConfigError(f"augment = '{chosen}': images are needed; an input has shape {data.input_shape}")
    if isinstance(data, GeneratedData):
        return data.with_augmentation(chosen)
    if not isinstance(data, FederatedData):
        raise ConfigError(
            f"augment = '{chosen}': images in memory are needed; a data set of yours augments its own samples"
        )
    values = {field.name: getattr(data, field.name) for field in fields(FederatedData)}
    return AugmentedImages(**values, augmentation=chosen)
