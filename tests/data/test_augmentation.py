"""Random crop and flip: against a literal loop, and in whole runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import laconic
from laconic.core.errors import ConfigError
from laconic.data import AugmentedData, GeneratedData, RandomCrop, RandomFlip, augment, from_arrays, load
from laconic.data.owned import OwnData, part_of


def images(count: int = 40, channels: int = 3, size: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(1, 256, (count, channels, size, size), generator=generator, dtype=torch.uint8)


def test_crop_and_flip_are_those_of_a_literal_loop():
    batch, padding = images(), 2
    generator = torch.Generator().manual_seed(5)
    cropped = RandomCrop(padding)(batch, generator)
    flipped = RandomFlip()(cropped, generator)
    draws = torch.Generator().manual_seed(5)
    corners = torch.randint(2 * padding + 1, (2, len(batch), 1), generator=draws)
    mirrored = torch.randint(2, (len(batch), 1, 1, 1), generator=draws, dtype=torch.bool)
    size = batch.shape[-1]
    for number, image in enumerate(batch):
        top, left = int(corners[0, number]) - padding, int(corners[1, number]) - padding
        expected = torch.zeros_like(image)
        for row in range(size):
            for column in range(size):
                y, x = row + top, column + left
                if 0 <= y < size and 0 <= x < size:
                    expected[:, row, column] = image[:, y, x]
        assert torch.equal(cropped[number], expected)
        if mirrored[number]:
            expected = torch.stack([expected[:, :, size - 1 - column] for column in range(size)], -1)
        assert torch.equal(flipped[number], expected)
    assert 0 < mirrored.sum() < len(batch) and corners.unique().tolist() == [0, 1, 2, 3, 4]


def test_padding_is_black_before_normalization():
    white = np.full((1, 1, 4, 4), 255, np.uint8)
    data = augment(from_arrays([(white, np.array([0]))], normalize=((0.5,), (0.5,))), "crop:4")
    assert isinstance(data, AugmentedData)
    seen = torch.cat([data.augmented(0, np.array([0]), torch.float32, seed)[0] for seed in range(20)])
    assert seen.unique().tolist() == [-1.0, 1.0], "black is -1, white is 1"
    assert data.batch(0, np.array([0]))[0].unique().tolist() == [1.0], "evaluations get the images unchanged"


def test_what_can_be_augmented():
    with pytest.raises(
        ConfigError, match=r"augment = 'crop\+flop': unknown name 'flop': .*allowed: crop\[:PADDING\], fl"
    ):
        load("digits", augment="crop+flop")
    with pytest.raises(ConfigError, match=r"augment = 'flip': images are needed; an input has shape \(13,\)"):
        augment(from_arrays([(np.zeros((2, 13)), np.array([0, 1]))]), "flip")
    digits = load("digits")
    assert augment(digits, "flip").fingerprint() != digits.fingerprint()


def test_wrappers_pass_augmentation_on():
    data = augment(load("digits"), "crop:2+flip")
    part = part_of(data, [3, 5])
    positions = np.arange(4)
    assert isinstance(part, OwnData) and isinstance(part, AugmentedData)
    ours, theirs = (d.augmented(5, positions, torch.float32, 7)[0] for d in (part, data))
    assert torch.equal(ours, theirs) and not torch.equal(ours, data.batch(5, positions)[0])
    assert not isinstance(part_of(load("digits"), [3]), AugmentedData)

    def make(client):
        return images(4), torch.tensor([0, 1, 0, 1])

    plain = GeneratedData(3, 4, make, kind="classification", classes=2, normalize=((0.5,) * 3, (0.5,) * 3))
    generated = augment(plain, "flip")
    assert isinstance(generated, AugmentedData) and not isinstance(plain, AugmentedData)
    expected = generated.augmented(1, positions, torch.float32, 1)[0]
    assert not torch.equal(expected, plain.batch(1, positions)[0])
    sent = part_of(generated, [1])
    assert sent.augmented.__self__ is sent, "no cache of the sender"
    assert torch.equal(sent.augmented(1, positions, torch.float32, 1)[0], expected)


def test_a_run_repeats_with_any_number_of_threads_and_chunks_and_on_disk():
    data = augment(load("digits"), "crop:1+flip")

    def run(source=data, **settings):
        algorithm = laconic.fed_cams(compressor="sign", local_lr=0.05)
        # Batched products round differently in chunks of other sizes, with or without augmentation. A loop does not.
        settings |= {"rounds": 3, "participants": 6, "numerics": {"strategy": "loop"}}
        return laconic.simulate(algorithm, "mlp:8", source, **settings).model_sha256

    first = run(threads=1)
    assert first == run(threads=2, chunk=1) == run(threads=1, chunk=6) == run(store="disk", store_cache="1MB")
    assert first != run(load("digits"))
