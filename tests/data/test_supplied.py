"""Data that people bring: arrays, torch data sets, their own file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from laconic.core.errors import ConfigError, DataError, LaconicError, LaconicWarning
from laconic.data import FederatedData, as_data, divide, from_arrays, from_datasets, from_file, load


def test_arrays_become_clients_in_order():
    clients = [(np.arange(6.0).reshape(3, 2), np.array([0, 1, 0])), (torch.ones(1, 2), [1])]
    data = from_arrays(clients, test=(np.zeros((1, 2)), np.array([2])))
    assert data.kind == "classification" and data.classes == 3, "the test labels count too"
    assert data.sizes().tolist() == [3, 1]
    inputs, targets = data.batch(0, np.array([2, 0]))
    assert inputs.tolist() == [[4, 5], [0, 1]] and targets.tolist() == [0, 0]
    assert inputs.dtype == torch.float32 and data.examples.inputs.dtype == torch.float64, (
        "each run has its own precision"
    )


def test_floating_targets_mean_regression():
    data = from_arrays([(np.zeros((2, 3)), np.array([0.5, 1.5]))])
    assert data.kind == "regression" and data.classes is None


def test_labels_that_are_text_become_classes_in_the_order_of_the_alphabet():
    clients = [(np.zeros((2, 3)), np.array(["dog", "cat"])), (np.zeros((1, 3)), ["dog"])]
    data = from_arrays(clients, test=(np.zeros((1, 3)), np.array(["eel"], dtype=object)))
    assert data.labels == ("cat", "dog", "eel") and (data.kind, data.classes) == ("classification", 3)
    assert data.examples.targets.tolist() == [1, 0, 1] and data.test.targets.tolist() == [2]
    stacked = from_datasets([[(torch.zeros(2), "dog"), (torch.zeros(2), "cat")]])
    assert stacked.labels == ("cat", "dog") and stacked.examples.targets.tolist() == [1, 0]


def test_labels_that_are_given_keep_their_order_wherever_they_occur():
    node = from_arrays([(np.zeros((2, 3)), ["eel", "dog"])], labels=["cat", "dog", "eel"])
    assert node.examples.targets.tolist() == [2, 1] and node.classes == 3 and not node.labels_found
    assert from_arrays([(np.zeros((2, 3)), ["eel", "dog"])]).labels_found
    with pytest.raises(DataError, match="'emu' is not among the labels: cat, dog"):
        from_arrays([(np.zeros((1, 3)), ["emu"])], labels=["cat", "dog"])


def test_arrays_without_clients():
    with pytest.raises(DataError, match="a list with a pair per client"):
        from_arrays((np.zeros((2, 3)), np.zeros(2)))
    with pytest.raises(DataError, match="client 1 is not a pair"):
        from_arrays([(np.zeros((1, 3)), ["emu"]), (np.zeros((1, 3)),)])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["1", "10"], "numbers as text, such as '1'"),
        (["cat", ""], "'' among text labels"),
        (np.array(["cat", np.nan], dtype=object), "'nan' among text labels"),
    ],
)
def test_text_that_is_no_label(labels, message):
    with pytest.raises(DataError, match=message):
        from_arrays([(np.zeros((2, 3)), labels)])
    with pytest.raises(DataError, match="client 1 has numbers as targets, but others have text"):
        from_arrays([(np.zeros((2, 3)), ["cat", "dog"]), (np.zeros((2, 3)), np.array([0, 1]))])


def test_uint8_images_with_normalization():
    white = np.full((2, 1, 2, 2), 255, np.uint8)
    data = from_arrays([(white, np.array([0, 1]))], normalize=((0.5,), (0.5,)))
    assert torch.allclose(data.batch(0, np.array([0]))[0], torch.ones(1, 1, 2, 2))


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "no clients"),
        ([(np.zeros((2, 3)), np.zeros(2, int)), (np.zeros((2, 4)), np.zeros(2, int))], "client 1 has shapes"),
        ([(np.zeros((2, 3)), np.zeros(1, int))], "client 0 has 2 inputs but 1 target"),
        ([(np.zeros((2, 3)), np.zeros(2, int)), (np.zeros((0, 3)), np.zeros(0, int))], "client 1 has no examples"),
        ([(np.array(["a"]), np.array([0]))], "client 0: not a pair of numeric arrays"),
        ([(np.zeros((1, 2)), np.zeros(1, int), 3)], "client 0: not a pair of numeric arrays"),
        ([(1.0, 2)], "first dimension"),
        ([(np.array([[np.nan]]), np.array([0]))], "input 0 contains nan"),
    ],
)
def test_arrays_that_do_not_fit(clients, message):
    with pytest.raises(DataError, match=message) as caught:
        from_arrays(clients)
    assert "\n" not in str(caught.value)


def test_an_empty_client_is_called_by_its_name():
    full, empty = (np.zeros((2, 3)), np.array([0, 1])), (np.zeros((0, 3)), np.zeros(0, int))
    with pytest.raises(DataError, match="client 'north' has no examples"):
        from_arrays({"south": full, "north": empty})
    assert from_arrays({"south": full, "north": empty}, skip_empty=True).client_names == ("south",)
    with pytest.raises(DataError, match="client 'north' has no examples"):
        as_data({"clients": {"south": full, "north": empty}})


class Squares(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, position: int) -> tuple[np.ndarray, int]:
        if position >= 4:
            raise IndexError
        return np.array([position, position**2], dtype=np.float32), position % 2


def test_torch_data_sets():
    held_out = TensorDataset(torch.zeros(2, 2), torch.tensor([0, 1]))
    data = from_datasets([Squares(), TensorDataset(torch.ones(1, 2), torch.tensor([1]))], test=held_out)
    assert data.sizes().tolist() == [4, 1] and data.classes == 2
    assert data.batch(0, np.array([3]))[0].tolist() == [[3, 9]]
    assert data.test is not None and len(data.test) == 2


def test_torch_data_sets_that_do_not_fit():
    with pytest.raises(DataError, match="client 0: sample 0 is not a pair"):
        from_datasets([TensorDataset(torch.zeros(2, 2))])
    with pytest.raises(DataError, match="client 0: the samples differ in shape"):
        from_datasets([[(torch.zeros(2), 0), (torch.zeros(3), 0)]])
    with pytest.raises(DataError, match="client 0 has no examples"):
        from_datasets([TensorDataset(torch.zeros(0, 2), torch.zeros(0))])


PAIRS = "[(np.full((2, 3), float(i)), np.array([0, 1])) for i in range(5)]"


def write(folder: Path, body: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text("import numpy as np\nimport torch\n" + body)
    return str(path)


@pytest.mark.parametrize(
    "body",
    [
        f"def clients(): return {PAIRS}",
        f"def clients(seed): return {PAIRS}",
        f"def clients(*, seed=None): return {PAIRS}",
        f'def clients(): return {{"clients": {PAIRS}, "test": (np.zeros((1, 3)), np.array([1]))}}',
        f"from laconic.data import from_arrays\ndef clients(): return from_arrays({PAIRS})",
        "from torch.utils.data import TensorDataset\n"
        "def clients(): return [TensorDataset(torch.full((2, 3), float(i)), torch.tensor([0, 1])) for i in range(5)]",
    ],
)
def test_what_a_file_may_return(tmp_path, body):
    data = from_file(write(tmp_path, body))
    assert len(data) == 5 and data.classes == 2
    assert data.batch(3, np.array([0, 1]))[0].tolist() == [[3.0] * 3] * 2


@pytest.mark.parametrize("clients", [PAIRS, "[TensorDataset(torch.zeros(2, 3), torch.tensor([0, 1]))]"])
def test_the_test_part_may_be_a_torch_data_set(tmp_path, clients):
    body = (
        "from torch.utils.data import TensorDataset\n"
        "def clients():\n"
        "    test = TensorDataset(torch.full((4, 3), 9.0), torch.tensor([0, 1, 1, 2]))\n"
        f"    return {{'clients': {clients}, 'test': test, 'classes': 5}}\n"
    )
    data = from_file(write(tmp_path, body))
    assert data.classes == 5
    assert data.test is not None and data.test.targets.tolist() == [0, 1, 1, 2]


def test_a_file_may_generate_clients_on_demand(tmp_path):
    body = (
        "from laconic.data import GeneratedData\n"
        "def make(client): return torch.full((2, 1), float(client)), torch.zeros(2, dtype=torch.int64)\n"
        "def clients(): return GeneratedData(10**6, 2, make, kind='classification', classes=1)\n"
    )
    name = write(tmp_path, body)
    data = load(name)
    assert len(data) == 10**6 and data.batch(77, np.array([1]))[0].tolist() == [[77.0]]
    with pytest.raises(ConfigError, match=r"clients is 5, but .* generates 1000000 of them"):
        load(name, clients=5)


def test_another_function_and_the_seed(tmp_path):
    body = "def other(seed): return [(np.full((1, 1), float(seed)), np.array([0]))]"
    data = from_file(write(tmp_path, body) + ":other", seed=7)
    assert data.batch(0, np.array([0]))[0].tolist() == [[7.0]]


def test_a_file_may_import_its_neighbor(tmp_path):
    write(tmp_path, "VALUE = 3.0", "laconic_test_neighbor.py")
    body = "from laconic_test_neighbor import VALUE\ndef clients(): return [(np.full((1, 1), VALUE), np.array([0]))]"
    assert from_file(write(tmp_path, body)).batch(0, np.array([0]))[0].tolist() == [[3.0]]


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("pass", ConfigError, "has no function 'clients'"),
        ("clients = 3", ConfigError, "has no function 'clients'"),
        ("def clients(): raise ValueError('first\\nsecond')", DataError, r"mine\.py:3: .*ValueError: first$"),
        ("def clients(): return 1 / 0", DataError, r"mine\.py:3: clients\(\) raised ZeroDivisionError"),
        ("def clients(:", DataError, r"mine\.py:3: importing it raised SyntaxError"),
        ("import no_such_module_here", DataError, r"mine\.py:3: importing it raised ModuleNotFoundError"),
        ("raise SystemExit('bye')", DataError, "SystemExit: bye"),
        ("def clients(folder): return []", ConfigError, r"clients\(\) requires 'folder'; only 'seed'"),
        ("def clients(): return 5", DataError, "it returned int; expected a ClientData"),
        ("def clients(): return []", DataError, "it returned list; expected .* non-empty"),
        ("def clients(): return {'test': 3}", DataError, "no key 'clients'"),
        ("def clients(): return {'clients': [], 'tets': 3}", DataError, "unknown key 'tets'; allowed: clients, test"),
        ("def clients(): return [(np.array([[np.nan]]), np.array([0]))]", DataError, "input 0 contains nan"),
    ],
)
def test_failures_name_the_file_in_one_line(tmp_path, body, kind, message):
    name = write(tmp_path, body)
    with pytest.raises(LaconicError, match=message) as caught:
        from_file(name)
    assert type(caught.value) is kind
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_a_failure_in_a_file_of_this_folder_has_its_line_too(tmp_path, monkeypatch):
    write(tmp_path, "def clients(): return 1 / 0")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"^mine\.py:3: clients\(\) raised ZeroDivisionError"):
        from_file("mine.py")


def test_a_missing_file():
    with pytest.raises(DataError, match=r"nowhere\.py: no such file"):
        load("nowhere.py:clients")


def test_fewer_clients_of_a_file_and_no_other_partition(tmp_path):
    name = write(tmp_path, f"def clients(): return {PAIRS}")
    with pytest.warns(
        LaconicWarning, match="^clients = 2: the data has 5 clients of its own, and a random choice of 2 "
    ):
        data = load(name, clients=2, seed=3)
    assert isinstance(data, FederatedData) and len(data) == 2
    assert data.fingerprint() == load(name, clients=2, seed=3, partition="natural").fingerprint()
    with pytest.raises(ConfigError, match="only 5 natural clients"):
        load(name, clients=6)
    with pytest.raises(ConfigError, match=r'makes its own clients; leave partition out, or return \{"examples"'):
        load(name, partition="iid")


@pytest.mark.parametrize(
    "returned",
    [
        "np.arange(40.0).reshape(20, 2), np.arange(20) % 2",
        "{'examples': (np.arange(40.0).reshape(20, 2), np.arange(20) % 2)}",
        "{'examples': [(np.array([2.0 * i, 2.0 * i + 1]), i % 2) for i in range(20)]}",
    ],
)
def test_examples_of_a_file_that_makes_no_clients_are_divided(tmp_path, returned):
    name = write(tmp_path, f"def clients(): return {returned}")
    data = load(name, clients=4, partition="shards:1", seed=3)
    assert isinstance(data, FederatedData) and len(data) == 4
    assert sorted(np.concatenate(list(data.clients)).tolist()) == list(range(20))
    assert (data.label_counts().min(axis=1) == 0).all(), "one shard has one label"
    again = divide(from_arrays([(data.examples.inputs, data.examples.targets)]), 4, "shards:1", seed=3)
    assert again.fingerprint() == data.fingerprint()
    for said in ({}, {"clients": 4}, {"partition": "iid"}):
        with pytest.raises(ConfigError, match=r"--partition iid --clients 20 .*, or return a list with one"):
            load(name, **said)
    with pytest.raises(ConfigError, match="no natural clients"):
        load(name, clients=4, partition="natural")
