"""ResNet-18 and ConvMixer-256/8, which FedCAMS trains on CIFAR (Wang et al. 2022, section 5)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from laconic.models.shapes import Shape, image_shape, wrong_shape


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al. 2016, figure 2)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        # Project only if the shape changes (He et al. 2016, option B).
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, images: Tensor) -> Tensor:
        """Residual plus shortcut."""
        residual = functional.relu(self.first_norm(self.first(images)))
        residual = self.second_norm(self.second(residual))
        return functional.relu(residual + self.shortcut(images))


def resnet18(input_shape: Shape, classes: int, sizes: tuple[int, ...]) -> nn.Module:
    """Build ResNet-18 in its CIFAR form: a 3x3 stem without max-pooling, for 32x32 images."""
    channels, _, _ = image_shape("resnet18", input_shape, smallest=8)
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
    ]
    before = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [BasicBlock(before, width, stride), BasicBlock(width, width, 1)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class Residual(nn.Module):
    """Adds the input of a module to its output."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, images: Tensor) -> Tensor:
        """The part's output plus its input."""
        output: Tensor = self.part(images) + images
        return output


def convmixer_256_8(input_shape: Shape, classes: int, sizes: tuple[int, ...]) -> nn.Module:
    """Build a ConvMixer of width 256 and depth 8 (Trockman and Kolter 2022, section 2).

    FedCAMS specifies width and depth only. Patch 2 and kernel 5 are the ConvMixer authors' choice for CIFAR-10.
    """
    patch, kernel = sizes
    channels, height, width = image_shape("convmixer_256_8", input_shape, smallest=patch)
    if height % patch or width % patch:
        raise wrong_shape("convmixer_256_8", input_shape, f"sides that are multiples of the patch size {patch}")
    layers: list[nn.Module] = [*_mix(nn.Conv2d(channels, 256, kernel_size=patch, stride=patch))]
    for _ in range(8):
        depthwise = nn.Conv2d(256, 256, kernel_size=kernel, groups=256, padding="same")
        layers += [Residual(nn.Sequential(*_mix(depthwise))), *_mix(nn.Conv2d(256, 256, kernel_size=1))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, classes))


def _mix(convolution: nn.Conv2d) -> list[nn.Module]:
    """Convolution, GELU, batch normalization: the order of the ConvMixer paper."""
    return [convolution, nn.GELU(), nn.BatchNorm2d(256)]
