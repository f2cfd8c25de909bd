"""Examples, FederatedData and GeneratedData: what a batch is, and what is refused."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from laconic.core.errors import ConfigError, DataError
from laconic.data import ClientData, Examples, FederatedData, GeneratedData
from laconic.data.federated import sizes_of

NORMALIZE = ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))


def pictures(count: int = 6) -> Examples:
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, 3, 4, 4), dtype=np.uint8))
    return Examples(pixels, torch.arange(count).to(torch.uint8) % 3, NORMALIZE)


def federated(**changes) -> FederatedData:
    whole = FederatedData(
        "some", "classification", pictures(), [np.array([4, 1, 0]), np.array([2]), np.array([5, 3])], pictures(2), 3
    )
    return replace(whole, **changes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_images_are_normalized_per_channel(dtype):
    examples = pictures()
    inputs, targets = examples.batch(torch.tensor([5, 0, 5]), dtype)
    mean, deviation = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in NORMALIZE)
    expected = (examples.inputs[[5, 0, 5]].double() / 255 - mean) / deviation
    assert inputs.dtype == dtype
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6}.get(dtype, 0.01)
    assert torch.allclose(inputs.double(), expected, rtol=tolerance, atol=tolerance)
    assert targets.dtype == torch.int64 and targets.tolist() == [2, 0, 2]
    assert examples.inputs.dtype == torch.uint8, "stored examples stay as they are"


def test_features_and_floating_targets_take_the_dtype():
    examples = Examples(torch.ones(3, 2), torch.ones(3))
    inputs, targets = examples.batch(torch.tensor([0]), torch.float64)
    assert inputs.dtype == targets.dtype == torch.float64


def test_a_batch_is_a_copy_even_of_the_whole():
    examples = Examples(torch.ones(3, 2), torch.zeros(3, dtype=torch.int64))
    inputs, targets = examples.batch(torch.arange(3))
    inputs.zero_()
    targets.fill_(7)
    assert examples.inputs.sum() == 6 and examples.targets.sum() == 0


def test_tokens_become_int64():
    tokens = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8)
    inputs, targets = Examples(tokens, tokens).batch(torch.tensor([1]))
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.tolist() == [[3, 4]]


def test_a_client_keeps_its_own_order():
    data = federated()
    inputs, targets = data.batch(0, np.array([0, 1, 2]))
    expected, _ = data.examples.batch(torch.tensor([4, 1, 0]))
    assert torch.equal(inputs, expected)
    assert targets.tolist() == [1, 1, 0]
    assert torch.equal(data.batch(2, np.array([1]))[0], data.examples.batch(torch.tensor([3]))[0])


def test_sizes_counts_and_shape():
    data = federated()
    assert len(data) == 3 and [data.size(client) for client in range(3)] == [3, 1, 2]
    assert data.sizes().tolist() == [3, 1, 2]
    assert data.label_counts().tolist() == [[1, 2, 0], [0, 0, 1], [1, 0, 1]]
    assert data.input_shape == (3, 4, 4)
    assert isinstance(data, ClientData)


def test_tokens_are_counted_too():
    tokens = torch.tensor([[0, 1], [1, 1]], dtype=torch.uint8)
    data = FederatedData("t", "next_token", Examples(tokens, tokens), [np.array([0]), np.array([1])], None, 2)
    assert data.label_counts().tolist() == [[1, 1], [0, 2]]


def test_the_fingerprint_depends_on_contents_split_order_and_test():
    data = federated()
    changed = pictures()
    changed.inputs[3, 0, 0, 0] ^= 1
    variants = [
        data,
        federated(examples=changed),
        federated(examples=replace(pictures(), normalize=((0.1, 0.2, 0.4), (0.5, 0.6, 0.7)))),
        federated(clients=[np.array([1, 4, 0]), np.array([2]), np.array([5, 3])]),
        federated(clients=[np.array([4, 1]), np.array([0, 2]), np.array([5, 3])]),
        federated(test=None),
        federated(classes=4),
    ]
    assert len({variant.fingerprint() for variant in variants}) == len(variants)
    assert federated(name="other").fingerprint() == data.fingerprint(), "a name is not content"
    assert pickle.loads(pickle.dumps(data)).fingerprint() == data.fingerprint()
    assert len(data.fingerprint()) == 64


def test_to_moves_all_tensors_and_keeps_the_split():
    data = federated()
    moved = data.to("cpu")
    assert moved.fingerprint() == data.fingerprint()
    assert data.examples.to("meta").inputs.device.type == "meta"


def features(inputs, targets, kind="classification", classes=2, **rest):
    clients = rest.pop("clients", [np.arange(len(inputs))])
    return FederatedData("some", kind, Examples(torch.tensor(inputs), torch.tensor(targets)), clients, None, classes)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: features([[1.0], [float("nan")]], [0, 1]), r"some \(train\): input 1 contains nan"),
        (lambda: features([[1.0], [float("-inf")]], [0, 1]), "input 1 contains -inf"),
        (lambda: features([[1.0]], [float("inf")], "regression", None), "target 0 contains inf"),
        (lambda: features([[1.0], [2.0]], [0, 2]), r"label 2 at index 1 is out of range; allowed: 0\.\.1"),
        (lambda: features([[1.0], [2.0]], [-1, 1]), r"label -1 at index 0 is negative; labels are numbered from 0"),
        (lambda: features([[1.0], [2.0]], [0]), "2 inputs but 1 target"),
        (lambda: features([[1.0]], [0], clients=[]), "there are no clients"),
        (lambda: features([[1.0]], [0], clients=[np.array([0]), np.array([], int)]), "client 1 has no examples"),
        (lambda: features([[1.0]], [0], clients=[np.array([1])]), r"client 0 has index 1; allowed: 0\.\.0"),
        (lambda: features([[1.0]], [0], clients=[np.array([-1])]), "client 0 has index -1"),
        (lambda: features([[1.0]], [0], clients=[np.array([0.0])]), "client 0 needs a list of int64"),
        (lambda: features([[1.0]], [0.5]), "classification needs integer targets"),
        (lambda: features([[1.0]], [0], "regression", None), "regression needs floating targets"),
        (lambda: features([[1.0]], [[0]]), "one label per example"),
        (lambda: features([[1.0]], [0], classes=None), "number of classes of at least 1, not None"),
        (lambda: features([[1.0]], [0], "ranking"), "kind is 'ranking'; allowed: classification, regression"),
        (lambda: features([[5]], [[1]], "next_token"), "input token 5 at index 0"),
        (lambda: features([[0.5]], [[1]], "next_token"), "next_token needs integer inputs"),
        (lambda: federated(test=Examples(torch.zeros(1, 3, 5, 5), torch.tensor([0]))), "a test input has shape"),
        (lambda: federated(test=Examples(torch.zeros(1, 3, 4, 4), torch.tensor([9]))), r"\(test\): label 9"),
    ],
)
def test_data_that_does_not_fit_is_refused_in_one_line(build, message):
    with pytest.raises(DataError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_large_finite_values_are_not_mistaken_for_infinity():
    features([[3e38], [3e38]], [0, 1])


def test_regression_has_no_classes_to_count():
    data = features([[1.0]], [0.5], "regression", None)
    assert data.classes is None
    with pytest.raises(DataError, match="no classes"):
        data.label_counts()


def made(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((client % 3 + 1, 2), float(client)), torch.full((client % 3 + 1,), client % 2)


class Counting:
    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.append(client)
        return made(client)


def generated(make=made, **options) -> GeneratedData:
    return GeneratedData(1_000_000, lambda c: c % 3 + 1, make, kind="classification", classes=2, **options)


def test_a_million_clients_cost_nothing_until_asked():
    data = generated()
    assert isinstance(data, ClientData)
    assert len(data) == 1_000_000 and data.input_shape == (2,) and data.size(2) == 3
    inputs, targets = data.batch(999_999, np.array([0]), torch.float64)
    assert inputs.tolist() == [[999_999.0, 999_999.0]] and targets.tolist() == [1]
    assert inputs.dtype == torch.float64


def test_the_cache_keeps_the_most_recent_clients():
    make = Counting()
    data = generated(make, cache=2)
    for client in (0, 1, 0, 2, 0, 1):
        data.batch(client, np.array([0]))
    assert make.calls == [0, 1, 2, 1], "client 0 was asked for again in time, client 1 was not"


def test_many_threads_may_ask():
    data = generated(cache=3)
    wrong: list[int] = []

    def ask(offset: int) -> None:
        for step in range(300):
            client = (offset + step) % 7
            inputs, _ = data.batch(client, np.array([0]))
            if inputs[0, 0] != client:
                wrong.append(client)

    threads = [threading.Thread(target=ask, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_generated_images_are_normalized():
    def make(client):
        return torch.full((1, 1, 2, 2), 255, dtype=torch.uint8), torch.tensor([0])

    data = GeneratedData(3, 1, make, kind="classification", classes=1, normalize=((0.5,), (0.25,)))
    assert torch.allclose(data.batch(0, np.array([0]))[0], torch.full((1, 1, 2, 2), 2.0))


def test_generated_data_is_checked_when_it_is_made():
    with pytest.raises(ConfigError, match="clients is 0"):
        GeneratedData(0, 1, made, kind="classification", classes=2)
    with pytest.raises(DataError, match="client 0: make returned 1 example, but size is 5"):
        GeneratedData(9, 5, made, kind="classification", classes=2)
    data = GeneratedData(9, lambda c: c % 3 + 1, made, kind="classification", classes=1)
    with pytest.raises(DataError, match="generated, client 1: label 1 at index 0"):
        data.batch(1, np.array([0]))
    with pytest.raises(DataError, match=r"no client 9; allowed: 0\.\.8"):
        data.batch(9, np.array([0]))


def test_what_makes_a_client_may_return_arrays():
    data = GeneratedData(3, 2, lambda c: (np.full((2, 3), c / 2), [c, 0]), kind="classification", classes=3)
    inputs, targets = data.batch(2, np.array([1, 0]), torch.float64)
    assert inputs.tolist() == [[1.0] * 3] * 2 and targets.tolist() == [0, 2]
    assert inputs.dtype == torch.float64 and data.batch(2, np.array([1]))[0].dtype == torch.float32


def test_sizes_of_any_data():
    class Bare:
        def __len__(self):
            return 4

        def size(self, client):
            return client + 1

    assert sizes_of(Bare()).tolist() == [1, 2, 3, 4]
    assert sizes_of(generated())[:4].tolist() == [1, 2, 3, 1] and len(sizes_of(generated())) == 10**6
    assert sizes_of(GeneratedData(5, 1, _constant, kind="classification", classes=2)).tolist() == [1] * 5


def test_the_fingerprint_of_generated_data_tells_other_data():
    def data(count, offset):
        def make(client):
            return torch.full((1, 2), float(client + offset)), torch.zeros(1, dtype=torch.int64)

        return GeneratedData(count, 1, make, kind="classification", classes=2).fingerprint()

    assert data(5, 0) == data(5, 0)
    assert len({data(5, 0), data(5, 1), data(6, 0)}) == 3


def test_generated_data_can_be_sent_to_another_process():
    data = GeneratedData(9, 1, _constant, kind="classification", classes=2)
    assert pickle.loads(pickle.dumps(data)).batch(4, np.array([0]))[0].tolist() == [[4.0]]


def _constant(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([[float(client)]]), torch.tensor([0])
