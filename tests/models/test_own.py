import sys
from pathlib import Path

import pytest
import torch

from laconic.core.errors import ConfigError
from laconic.models import build

SOURCE = """
from torch import nn

SIDE = 4

def both(input_shape, classes):
    return nn.Linear(input_shape[0], classes)

def only_classes(*, classes):
    return nn.Linear(SIDE, classes)

def only_shape(input_shape, scale=2):
    return nn.Linear(input_shape[0], scale)

def none():
    return nn.Linear(SIDE, 3)

def anything(**settings):
    return nn.Linear(settings["input_shape"][0], settings["classes"])

class Net(nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
        self.layer = nn.Linear(input_shape[0], classes)

    def forward(self, x):
        return self.layer(x)

def asks_more(classes, depth):
    return nn.Linear(SIDE, classes)

def by_position(classes, /):
    return nn.Linear(SIDE, classes)

def fails(classes):
    raise RuntimeError("first line\\nsecond line")

def wrong_kind():
    return 3

def empty():
    return nn.ReLU()
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize(
    ("function", "outputs"),
    [("both", 5), ("only_classes", 5), ("only_shape", 2), ("none", 3), ("anything", 5), ("Net", 5)],
)
def test_a_file_with_every_kind_of_signature(source: Path, function: str, outputs: int) -> None:
    module = build(f"{source}:{function}", (4,), 5)
    assert module(torch.randn(2, 4)).shape == (2, outputs)


def test_an_importable_module(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = source.parent / "persons_package"
    package.mkdir()
    (package / "__init__.py").touch()
    source.rename(package / "nets.py")
    monkeypatch.syspath_prepend(source.parent)
    assert build("persons_package.nets:both", (4,), 5)(torch.randn(2, 4)).shape == (2, 5)


def test_two_files_of_one_name_stay_apart(tmp_path: Path) -> None:
    for outputs in (2, 3):
        folder = tmp_path / str(outputs)
        folder.mkdir()
        (folder / "net.py").write_text(f"from torch import nn\ndef net(): return nn.Linear(4, {outputs})\n")
    widths = [build(f"{tmp_path}/{outputs}/net.py:net", (4,), 9).out_features for outputs in (2, 3)]
    assert widths == [2, 3]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("missing", "has no function 'missing'"),
        ("SIDE", "has no function 'SIDE'"),
        ("asks_more", "parameter 'depth' has no default; allowed: input_shape, classes"),
        ("by_position", "parameter 'classes' has no default"),
        ("fails", r"'fails' failed at .*nets.py:36: RuntimeError: first line second line"),
        ("wrong_kind", "'wrong_kind' returned int, not a torch.nn.Module"),
        ("empty", "returned a module without trainable parameters"),
    ],
)
def test_what_can_be_wrong_with_a_function(source: Path, function: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build(f"{source}:{function}", (4,), 5)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"model '{source}:{function}': ")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        build(f"{tmp_path}/absent.py:net", (4,), 5)


def test_a_file_that_does_not_load(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def net(:\n")
    before = set(sys.modules)
    with pytest.raises(ConfigError, match=r"cannot load .*SyntaxError") as caught:
        build(f"{path}:net", (4,), 5)
    assert "\n" not in str(caught.value)
    assert not {name for name in set(sys.modules) - before if "broken" in name}


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"cannot import 'no_such_package.nets'.*path/to/file.py:function"):
        build("no_such_package.nets:net", (4,), 5)


def test_a_module_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "persons_failing_module.py").write_text("raise ValueError('no')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="cannot import 'persons_failing_module': ValueError: no"):
        build("persons_failing_module:net", (4,), 5)


def test_a_missing_dependency_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "persons_needing_module.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"No module named 'no_such_dependency'$"):
        build("persons_needing_module:net", (4,), 5)
