import pytest
import torch

from laconic.core.errors import ConfigError
from laconic.models import build, models

IMAGE = (1, 28, 28)

# Two norms, attention (3 + 1 squares with biases), two linear layers with 4 times the width between them.
BLOCK_OF_64 = 4 * 64 + 4 * 64 * 65 + 65 * 256 + 257 * 64
# Counted by hand from the layers that the papers and readings describe.
COUNTS = [
    ("logistic", IMAGE, 10, 784 * 10 + 10),
    ("mlp", IMAGE, 10, 199_210),
    ("mlp:200,200", IMAGE, 10, 199_210),
    ("mlp:64", IMAGE, 10, 50_890),
    ("mlp:100", IMAGE, 10, 79_510),
    ("mlp:200", IMAGE, 10, 159_010),
    ("lenet5", IMAGE, 10, 44_426),
    ("cnn", IMAGE, 10, 1_199_882),
    ("cnn_mnist", IMAGE, 10, 21_840),
    ("cnn_fashion", IMAGE, 10, 29_034),
    ("char_gru", (80,), 65, 65 * 8 + 3 * 128 * (8 + 128 + 2) + 129 * 65),
    ("char_gru:32", (80,), 65, 65 * 8 + 3 * 32 * (8 + 32 + 2) + 33 * 65),
    ("char_gru:32,4", (80,), 65, 65 * 4 + 3 * 32 * (4 + 32 + 2) + 33 * 65),
    ("gpt", (80,), 65, (65 + 80) * 64 + 2 * BLOCK_OF_64 + 2 * 64 + 65 * 65),
    ("gpt:1x64", (20,), 65, (65 + 20) * 64 + BLOCK_OF_64 + 2 * 64 + 65 * 65),
    ("vit", IMAGE, 10, 17 * 64 + 49 * 64 + 2 * BLOCK_OF_64 + 2 * 64 + 65 * 10),
    ("vit:1x64,2,8", (3, 8, 8), 10, 13 * 64 + 16 * 64 + BLOCK_OF_64 + 2 * 64 + 65 * 10),
    ("resnet18", (3, 32, 32), 10, 11_173_962),
    ("convmixer_256_8", (3, 32, 32), 10, 594_186),
    ("convmixer_256_8:1,9", (3, 32, 32), 10, 706_570),
]


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


@pytest.mark.parametrize(("name", "shape", "classes", "expected"), COUNTS)
def test_parameter_counts(name: str, shape: tuple[int, ...], classes: int, expected: int) -> None:
    assert count(build(name, shape, classes)) == expected


def test_listing_agrees_with_the_models() -> None:
    listed = {info.name: info for info in models()}
    expected = {name: number for name, _, _, number in COUNTS if ":" not in name}
    assert {name: info.parameter_count for name, info in listed.items()} == expected
    assert listed["mlp"].parameters == {"hidden": "200,200"}
    assert listed["char_gru"].parameters == {"hidden": "128", "embedding": "8"}
    assert listed["lenet5"].parameters == {}
    assert all(info.description and info.citation for info in listed.values())


def test_listing_leaves_the_random_numbers_alone() -> None:
    before = torch.random.get_rng_state()
    models()
    assert torch.equal(before, torch.random.get_rng_state())


SHAPES = [
    ("logistic", (13,)),
    ("mlp:8", (4, 5)),
    ("lenet5", (3, 32, 32)),
    ("lenet5", (1, 16, 20)),
    ("cnn", (3, 32, 32)),
    ("cnn", (1, 6, 7)),
    ("cnn_mnist", (3, 32, 32)),
    ("cnn_fashion", (3, 32, 32)),
    ("cnn_fashion", (1, 4, 4)),
    ("resnet18", (1, 28, 28)),
    ("convmixer_256_8:4,3", (1, 28, 28)),
    ("vit:1x16,4", (3, 8, 12)),
]


@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_inputs_of_other_shapes(name: str, shape: tuple[int, ...]) -> None:
    output = build(name, shape, 7)(torch.randn(2, *shape))
    assert output.shape == (2, 7)
    output.sum().backward()


def test_regression_has_one_output() -> None:
    assert build("mlp:8", (13,), 1)(torch.randn(5, 13)).shape == (5, 1)
    assert build("mlp:4", (3,), None)[-1].out_features == 1, "data.classes of a regression"


@pytest.mark.parametrize("name", ["char_gru:16", "gpt:2x16"])
def test_characters_get_logits_at_every_position(name: str) -> None:
    module = build(name, (20,), 65).eval()
    tokens = torch.randint(65, (3, 20))
    logits = module(tokens)
    assert logits.shape == (3, 20, 65)
    tokens[:, 10:] = 0
    # A position may not see the characters after it.
    torch.testing.assert_close(module(tokens)[:, :10], logits[:, :10])


def test_a_vision_transformer_cuts_patches_of_neighboring_pixels() -> None:
    module = build("vit:1x16,4", (2, 8, 8), 3)
    seen: list[torch.Tensor] = []
    module.embedding.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    images = torch.randn(3, 2, 8, 8)
    module(images)
    expected = [images[:, :, row : row + 4, column : column + 4].flatten(1) for row in (0, 4) for column in (0, 4)]
    assert torch.equal(seen[0], torch.stack(expected, dim=1))


@pytest.mark.parametrize("name", ["mlp:16", "lenet5", "cnn_fashion", "vit:1x16"])
def test_the_seed_decides_the_weights(name: str) -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([each.flatten() for each in build(name, IMAGE, 10).parameters()])

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


ERRORS = [
    ("lenet", IMAGE, "unknown model 'lenet': did you mean 'lenet5'?"),
    ("mlq:64", IMAGE, "unknown model 'mlq': did you mean 'mlp'?"),
    ("", IMAGE, "unknown model ''"),
    ("lenet5", (784,), "model 'lenet5' cannot take input of shape 784: it needs channels x height x width"),
    ("lenet5", (1, 15, 28), "model 'lenet5' cannot take input of shape 1x15x28: .* at least 16"),
    ("cnn", (1, 5, 5), "at least 6"),
    ("resnet18", (3, 32), "model 'resnet18' cannot take input of shape 3x32"),
    ("convmixer_256_8:3,5", (3, 32, 32), "multiples of the patch size 3"),
    ("char_gru", IMAGE, "model 'char_gru' cannot take input of shape 1x28x28: it needs a sequence length"),
    ("mlp", (), "model 'mlp' cannot take input of shape"),
    ("mlp", (0, 3), "positive sizes"),
    ("mlp:", IMAGE, "positive whole numbers"),
    ("mlp:a,2", IMAGE, "positive whole numbers"),
    ("mlp:0", IMAGE, "positive whole numbers"),
    ("mlp:64,", IMAGE, "positive whole numbers"),
    ("lenet5:3", IMAGE, "'lenet5' takes no sizes"),
    ("gpt:2x64", IMAGE, "model 'gpt' cannot take input of shape 1x28x28: it needs a sequence length"),
    ("gpt:2x30", (80,), "model 'gpt': the width 30 must be a multiple of the number of heads, 4"),
    ("vit:2x64,5", IMAGE, "multiples of the patch size 5"),
    ("mlp:2x64", IMAGE, "positive whole numbers"),
    ("char_gru:1,2,3", (80,), "3 sizes given, at most 2 allowed: hidden, embedding"),
]


@pytest.mark.parametrize(("name", "shape", "message"), ERRORS)
def test_errors_are_one_line(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build(name, shape, 10)
    assert "\n" not in str(caught.value)


def test_no_outputs_is_an_error() -> None:
    with pytest.raises(ConfigError, match="cannot have 0 outputs"):
        build("mlp", IMAGE, 0)
