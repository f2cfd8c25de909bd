"""The papers' small convolutional networks for 28x28 images. Other sizes change the first linear layer."""

from __future__ import annotations

from torch import nn

from laconic.models.shapes import Shape, image_shape


def lenet5(input_shape: Shape, classes: int, sizes: tuple[int, ...]) -> nn.Module:
    """LeNet-5 as FedAMD trains it (Wu et al. 2023, section 5): max-pooling and ReLU, no padding."""
    channels, height, width = image_shape("lenet5", input_shape, smallest=16)
    features = 16 * _after_two_convolutions(height) * _after_two_convolutions(width)
    return nn.Sequential(
        nn.Conv2d(channels, 6, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def cnn(input_shape: Shape, classes: int, sizes: tuple[int, ...]) -> nn.Module:
    """Fed-EF's network (Li and Li 2023, section 5): two convolutions, one pooling, one dropout, two linear.

    The paper gives no sizes. These are the usual ones for that description (3x3 kernels, 32 and 64 channels).
    """
    channels, height, width = image_shape("cnn", input_shape, smallest=6)
    features = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 32, kernel_size=3),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(features, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def cnn_mnist(input_shape: Shape, classes: int, sizes: tuple[int, ...]) -> nn.Module:
    """The small MNIST network published with FedCAMS (Wang et al. 2022)."""
    channels, height, width = image_shape("cnn_mnist", input_shape, smallest=16)
    features = 20 * _after_two_convolutions(height) * _after_two_convolutions(width)
    return nn.Sequential(
        nn.Conv2d(channels, 10, kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, kernel_size=5),
        nn.Dropout2d(0.5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(features, 50),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(50, classes),
    )


def cnn_fashion(input_shape: Shape, classes: int, sizes: tuple[int, ...]) -> nn.Module:
    """The Fashion-MNIST network published with FedCAMS (Wang et al. 2022), with batch normalization."""
    channels, height, width = image_shape("cnn_fashion", input_shape, smallest=4)
    features = 32 * (height // 4) * (width // 4)
    return nn.Sequential(
        nn.Conv2d(channels, 16, kernel_size=5, padding=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=5, padding=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, classes),
    )


def _after_two_convolutions(side: int) -> int:
    """Return the image side after applying twice: 5x5 convolution without padding, 2x2 pooling."""
    return ((side - 4) // 2 - 4) // 2
