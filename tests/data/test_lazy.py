"""Torch data sets with random augmentation are read batch by batch, under named randomness."""

from __future__ import annotations

import pickle
import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset, random_split

import laconic
from laconic.core.errors import ConfigError, DataError
from laconic.data import AugmentedData, FederatedData, LazyData, divide, from_datasets, load
from laconic.data.owned import part_of
from laconic.run.config import load_config
from laconic.run.driver import run_config

FLOATS = [torch.float32, torch.float64]


class Noisy(Dataset):
    """Adds noise of all three global generators to its inputs."""

    def __init__(self, size: int, start: int = 0) -> None:
        self.size, self.start = size, start
        self.reads = 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, position: int) -> tuple[torch.Tensor, int]:
        if position >= self.size:
            raise IndexError
        self.reads += 1
        clean = torch.full((3,), float(self.start + position) / 10)
        noise = torch.stack([torch.rand(()), torch.tensor(np.random.rand()).float(), torch.tensor(random.random())])
        return clean + 0.1 * noise, (self.start + position) % 2


def clients() -> list[Noisy]:
    return [Noisy(size, 10 * size) for size in (5, 9, 7, 4)]


def test_augmentation_is_fresh_in_each_read_and_named_by_the_seed():
    data = from_datasets(clients())
    assert isinstance(data, LazyData) and isinstance(data, AugmentedData)
    assert (data.kind, data.classes, data.input_shape) == ("classification", 2, (3,))
    positions = np.array([3, 1])
    one, same, other = (data.augmented(1, positions, torch.float32, seed)[0] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert (one != other).all(), "all three generators are seeded"
    assert torch.equal(data.batch(1, positions)[0], data.batch(1, positions)[0])


def test_a_generator_of_its_own_gets_a_warning():
    class Own(Noisy):
        def __getitem__(self, position: int) -> tuple[torch.Tensor, int]:
            inputs, target = super().__getitem__(position)
            return inputs + float(np.random.default_rng().random()), target

    with pytest.warns(
        laconic.LaconicWarning, match=r"the first sample differs each time .*np\.random or random, which"
    ):
        from_datasets([Own(5)], classes=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_datasets(clients(), classes=2)


def test_reading_leaves_the_global_generators_alone():
    data = from_datasets(clients(), classes=2)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    data.augmented(0, np.arange(5), torch.float32, 3)
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1]) and states[2] == random.getstate()


def test_given_classes_save_the_pass_over_all_examples():
    lazy = clients()
    assert from_datasets(lazy, classes=2).classes == 2
    assert sum(dataset.reads for dataset in lazy) <= 3
    held_out = (np.zeros((2, 3)), np.array([0, 1]))
    test = from_datasets(clients(), test=held_out, classes=2).test
    assert [test.batch(torch.arange(2), dtype)[0].dtype for dtype in FLOATS] == FLOATS
    assert from_datasets(clients(), in_memory=True).examples.inputs.shape == (25, 3)


def test_a_run_repeats_bit_for_bit():
    torch.manual_seed(0)
    module = nn.Linear(3, 2)

    def sha(**settings):
        algorithm = laconic.fed_cams(compressor="sign", local_lr=0.05, local_epochs=2, batch_size=3)
        return laconic.simulate(algorithm, module, clients(), rounds=3, **settings).model_sha256

    first = sha(threads=1)
    assert first == sha(threads=2, chunk=1) == sha(threads=1, chunk=4) == sha(store="disk", store_cache="1MB")
    assert first != sha(seed=1)


def test_epochs_and_rounds_see_different_noise():
    seen: list[torch.Tensor] = []

    def loss(module, batch):
        seen.append(batch[0].detach().clone())
        return nn.functional.cross_entropy(module(batch[0]), batch[1])

    algorithm = laconic.fed_avg(local_lr=0.05, local_epochs=2, batch_size=5, batch_order="fixed")
    task = laconic.Task(nn.Linear(3, 2), loss=loss)
    laconic.simulate(algorithm, task, from_datasets([Noisy(5)], classes=2), rounds=2, numerics={"strategy": "loop"})
    batches = [batch for batch in seen if len(batch) == 5][-4:]
    assert len({tuple(batch.flatten().tolist()) for batch in batches}) == 4, "2 rounds of 2 epochs"


def test_a_run_resumes_and_other_data_is_refused(tmp_path):
    body = (
        "import torch\nfrom torch.utils.data import Dataset\n"
        "class Noisy(Dataset):\n"
        "    def __len__(self): return 6\n"
        "    def __getitem__(self, i): return torch.rand(3) + i, i % SHARE\n"
        "def clients(): return {'clients': [Noisy() for _ in range(4)], 'classes': 2}\n"
    )
    file = tmp_path / "noisy.py"

    def finish(rounds: int, folder: str, share: int = 2):
        file.write_text(f"SHARE = {share}\n" + body)
        options = {"dataset": str(file), "model": "mlp:4", "rounds": rounds, "method.local_lr": 0.1}
        return run_config(load_config(None, options), tmp_path / folder, resume=True).result.model_sha256

    whole = finish(4, "whole")
    finish(2, "parts")
    with pytest.raises(ConfigError, match="resume: the data differs"):
        finish(4, "parts", share=1)
    assert finish(4, "parts") == whole


def test_tensors_are_read_at_once_and_lists_too():
    tensors = TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6) % 3)
    left, right = random_split(tensors, [4, 2], torch.Generator().manual_seed(0))
    data = from_datasets([left, right, Subset(left, [1, 0])])
    assert isinstance(data, FederatedData) and data.sizes().tolist() == [4, 2, 2]
    assert data.batch(2, np.array([0]))[0].tolist() == [tensors[left.indices[1]][0].tolist()]


def test_data_sets_that_cannot_repeat_are_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            yield torch.zeros(2), 0

    with pytest.raises(DataError, match=r"client 0: Stream has no length .* or read it into a list: list\(dataset\)"):
        laconic.simulate("fed_avg", "logistic", [Stream()])
    with pytest.raises(DataError, match=r"client 1 has no examples; .*--skip-empty \(in Python .*skip_empty=True\)"):
        from_datasets([Noisy(2), Noisy(0)])
    assert len(from_datasets([Noisy(2), Noisy(0), Noisy(3)], skip_empty=True)) == 2


def test_faults_of_samples_name_the_client():
    class Bad(Noisy):
        def __getitem__(self, position):
            inputs, target = super().__getitem__(position)
            return (inputs * float("nan") if position == 1 else inputs), (7 if position == 2 else target)

    data = from_datasets([Noisy(3), Bad(3)], classes=2)
    with pytest.raises(DataError, match="client 1: input 1 contains nan"):
        data.batch(1, np.array([1]))
    with pytest.raises(DataError, match=r"client 1: label 7 at index 2 is out of range; allowed: 0\.\.1"):
        data.batch(1, np.array([0, 2]))


def test_text_labels_and_samples_that_are_dicts():
    class Named(Noisy):
        def __getitem__(self, position):
            inputs, target = super().__getitem__(position)
            return {"label": ("dog", "cat")[target], "age": inputs[0], "weight": inputs[1]}

    data = from_datasets([Named(4), Named(3)], test=Named(2))
    assert data.labels == ("cat", "dog") and data.input_shape == (2,) and data.classes == 2
    assert data.batch(0, np.array([0, 1]))[1].tolist() == [1, 0] and data.test.targets.tolist() == [1, 0]
    assert from_datasets([Named(4)], inputs="age").input_shape == (1,)
    with pytest.raises(DataError, match="no column 'height'; allowed: label, age, weight"):
        from_datasets([Named(4)], inputs="height")


def test_lazy_examples_without_clients_are_divided(tmp_path):
    whole = from_datasets([Noisy(20)])
    parts = divide(whole, 4, "shards:1")
    assert isinstance(parts, LazyData) and parts.sizes().tolist() == [5] * 4 and whole.sizes().tolist() == [20]
    file = tmp_path / "one.py"
    file.write_text(
        "import torch\nfrom torch.utils.data import Dataset\n"
        "class Whole(Dataset):\n"
        "    def __len__(self): return 20\n"
        "    def __getitem__(self, i): return torch.rand(2), i % 2\n"
        "def clients(): return {'examples': Whole()}\n"
    )
    assert len(load(str(file), clients=5, partition="iid")) == 5
    assert isinstance(from_datasets([ConcatDataset([Noisy(2), Noisy(3)])]), LazyData)


def test_workers_and_nodes_get_their_part():
    data = from_datasets(clients(), test=Noisy(4))
    part = pickle.loads(pickle.dumps(part_of(data, [1, 3])))
    assert isinstance(part, AugmentedData) and len(part) == 4 and part.test is None and data.test is not None
    one, other = (d.augmented(3, np.array([0]), torch.float32, 5)[0] for d in (part, data))
    assert torch.equal(one, other)
    assert data.fingerprint() == from_datasets(clients(), test=Noisy(4)).fingerprint()
    assert data.fingerprint() != from_datasets([*clients()[:3], Noisy(4, 50)], test=Noisy(4)).fingerprint()


@pytest.mark.parametrize("workers", [0, 2])
def test_ones_own_training_loop_sees_augmentation_that_repeats(workers):
    seen: list[float] = []

    def train(module, dataset):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            for inputs, targets in DataLoader(dataset, batch_size=3, num_workers=workers):
                seen.append(float(inputs.sum()))
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(inputs), targets).backward()
                optimizer.step()

    def sha() -> str:
        algorithm = laconic.Algorithm(laconic.OwnTraining(train))
        torch.manual_seed(0)
        return laconic.simulate(algorithm, nn.Linear(3, 2), [Noisy(3), Noisy(3, 5)], rounds=1).model_sha256

    assert sha() == sha()
    assert len(seen) == 8 and len(set(seen)) == 4, "2 clients, 2 epochs; the second run repeats the first"
