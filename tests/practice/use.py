"""The data that newcomers bring, and what they do in Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

import laconic
from tests.practice.things import DATA, PYTHON, arrays, net, sentences, thing

# Data


@thing(DATA, "A Hugging Face DatasetDict", 'laconic.simulate("fed_avg", "mlp:8", table, rounds=1)')
def _hub(do: Callable[..., Any], folder: Path) -> None:
    hub = pytest.importorskip("datasets", reason="the extra `datasets` is not installed")
    inputs, targets = arrays(1, 30)[0]
    columns = {"age": inputs[:, 0], "size": inputs[:, 1], "client": np.arange(30) % 3, "label": targets}
    result = do(table=hub.Dataset.from_dict(columns).train_test_split(0.2, seed=0))
    assert result.form.input_shape == (2,) and result.history[-1]["participants"] == 3


@thing(DATA, "Partitioners of Flower Datasets", "laconic.data.from_hugging_face(partitioner, test=test)")
def _partitioners(do: Callable[..., Any], folder: Path) -> None:
    texts = sentences()

    class Partitioner:
        """The interface of a partitioner of Flower Datasets, which needs no download."""

        num_partitions = 3

        def load_partition(self, number: int) -> Any:
            return texts["train"].shard(3, number)

    assert do(partitioner=Partitioner(), test=texts["test"]).sizes().tolist() == [10, 10, 10]


@thing(
    DATA,
    "Lists of torch Datasets and Subsets",
    'laconic.simulate("fed_avg", net, [Subset(whole, part) for part in parts], rounds=1)',
)
def _subsets(do: Callable[..., Any], folder: Path) -> None:
    whole = TensorDataset(*map(torch.from_numpy, arrays(1, 30)[0]))
    result = do(net=net, Subset=Subset, whole=whole, parts=[range(10), range(10, 30)])
    assert result.history[-1]["participants"] == 2


@thing(DATA, "A folder with a CSV or Parquet file per client", 'laconic.data.load(f"{folder}:target=ill")')
def _files(do: Callable[..., Any], folder: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="the extra `tables` is not installed")
    table = pandas.DataFrame({"age": range(20), "ill": [0, 1] * 10})
    table.to_csv(folder / "ann.csv", index=False)
    table.to_parquet(folder / "bob.parquet")
    data = do(folder=folder)
    assert len(data) == 2 and data.input_shape == (1,) and data.classes == 2


@thing(DATA, "Images in a folder per class", "laconic.data.from_images(folder)")
def _images(do: Callable[..., Any], folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for client in ("ann", "bob"):
        for label in ("dark", "light"):
            (folder / client / label).mkdir(parents=True)
            for number in range(5):
                pixels = np.full((4, 4), 200 if label == "light" else 20 + number, dtype="uint8")
                image.fromarray(pixels).save(folder / client / label / f"{number}.png")
    data = do(folder=folder)
    assert len(data) == 2 and data.labels == ("dark", "light")


@thing(DATA, "A client without examples", "laconic.data.from_arrays(clients, skip_empty=True)")
def _empty(do: Callable[..., Any], folder: Path) -> None:
    inputs, targets = arrays(1)[0]
    clients = [(inputs, targets), (inputs[:0], targets[:0])]
    assert len(do(clients=clients)) == 1
    with pytest.raises(
        laconic.DataError, match=r"client 1 has no examples; .*--skip-empty \(in Python .*skip_empty=True\)"
    ):
        laconic.simulate("fed_avg", net, clients)


@thing(DATA, "NaN in a client's data: the error names the client", 'laconic.simulate("fed_avg", net, clients)')
def _nan(do: Callable[..., Any], folder: Path) -> None:
    clients = arrays()
    clients[1][0][5, 2] = np.nan
    with pytest.raises(laconic.DataError, match="client 1: input 5 contains nan"):
        do(net=net, clients=clients)


# Python


@thing(PYTHON, "A recipe and its parameters", "laconic.simulate(laconic.fed_avg, net, clients, rounds=1, local_lr=0.1)")
def _recipe(do: Callable[..., Any], folder: Path) -> None:
    assert do(net=net, clients=arrays()).algorithm.method.local_lr == 0.1


@thing(
    PYTHON,
    "Compare algorithms, over several seeds (`laconic compare --seeds 2`)",
    'laconic.compare({"dense": laconic.fed_avg, "signs": "fed_cams:compressor=sign"}, net, clients, rounds=2, seeds=2)',
)
def _compare(do: Callable[..., Any], folder: Path) -> None:
    comparison = do(net=net, clients={"clients": arrays(), "test": arrays()[0]})
    assert comparison["signs"].ledger.bytes("up") < comparison["dense"].ledger.bytes("up")
    assert "±" in repr(comparison) and "<table>" in comparison._repr_html_()
    comparison.report(folder / "page.html")
    assert '"label":"signs"' in (folder / "page.html").read_text()


@thing(
    PYTHON,
    "Rank by another metric; count the bytes until it reaches a value (`laconic compare --target loss=1 --rank-by loss`)",
    'laconic.compare(["fed_avg", "fed_prox"], net, clients, rounds=6, eval_every=1, target="loss=1", rank_by="loss")',
)
def _rank(do: Callable[..., Any], folder: Path) -> None:
    comparison = do(net=net, clients={"clients": arrays(), "test": arrays()[0]})
    losses = [run["loss"] for run in comparison.summaries()]
    assert losses == sorted(losses) and "both to loss 1" in repr(comparison)


@thing(PYTHON, "Results as a data frame", "result.to_pandas()")
def _pandas(do: Callable[..., Any], folder: Path) -> None:
    pytest.importorskip("pandas", reason="the extra `tables` is not installed")
    comparison = laconic.compare(["fed_avg"], net, arrays(), rounds=2)
    assert do(result=comparison["fed_avg"]).index.tolist() == [1, 2]
    assert do(result=comparison).loc["fed_avg", "rounds"] == 2


@thing(
    PYTHON,
    "Resume a run with your own data and module",
    'laconic.simulate("fed_cams", net, clients, rounds=4, out=folder / "run", resume=True)',
)
def _resume(do: Callable[..., Any], folder: Path) -> None:
    whole = laconic.simulate("fed_cams", net, arrays(), rounds=4)
    laconic.simulate("fed_cams", net, arrays(), rounds=2, out=folder / "run")
    assert do(net=net, clients=arrays(), folder=folder).model_sha256 == whole.model_sha256
    with pytest.raises(laconic.ConfigError, match="the data differs"):
        do(net=net, clients=arrays()[::-1], folder=folder)


@thing(
    PYTHON,
    "Stop when nothing improves",
    'laconic.simulate("fed_avg", net, data, callbacks=[laconic.EarlyStopping("accuracy", patience=2)])',
)
def _early(do: Callable[..., Any], folder: Path) -> None:
    result = do(net=net, data={"clients": arrays(), "test": arrays()[0]})
    assert result.stopped == "accuracy has not improved in 2 evaluations" and len(result.history) < 100


@thing(
    PYTHON,
    "Keep the best model",
    'laconic.simulate("fed_avg", net, data, rounds=5, callbacks=[laconic.SaveBest("loss", folder / "best.safetensors")])',
)
def _best(do: Callable[..., Any], folder: Path) -> None:
    do(net=net, data={"clients": arrays(), "test": arrays()[0]}, folder=folder)
    assert (folder / "best.safetensors").exists()


@thing(
    PYTHON,
    "Log to TensorBoard, MLflow or Weights & Biases",
    'laconic.simulate("fed_avg", net, clients, rounds=1, out=folder / "run", callbacks=[laconic.TensorBoard()])',
)
def _trackers(do: Callable[..., Any], folder: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    do(net=net, clients=arrays(), folder=folder)
    assert [*(folder / "run/tensorboard").iterdir()]


@thing(PYTHON, "Predict", "result.predict(inputs).argmax(-1)")
def _predict(do: Callable[..., Any], folder: Path) -> None:
    inputs, targets = arrays()[0]
    result = laconic.simulate("fed_avg", net, {"clients": arrays(), "test": (inputs, targets)}, rounds=5)
    right = do(result=result, inputs=inputs).numpy() == targets
    assert result.accuracy == pytest.approx(right.mean())


@thing(PYTHON, "Evaluate on other data", "result.evaluate((inputs, targets))")
def _evaluate(do: Callable[..., Any], folder: Path) -> None:
    inputs, targets = arrays()[0]
    result = laconic.simulate("fed_avg", net, {"clients": arrays(), "test": (inputs, targets)}, rounds=2)
    assert do(result=result, inputs=inputs, targets=targets) == pytest.approx(result.metrics)


@thing(
    PYTHON, "Save the model, and load it", "module.load_state_dict(laconic.load_model(path))  # after result.save(path)"
)
def _save(do: Callable[..., Any], folder: Path) -> None:
    result, module, path = laconic.simulate("fed_avg", net, arrays(), rounds=1), net(), folder / "net.safetensors"
    result.save(path)
    do(module=module, path=path)
    inputs = torch.from_numpy(arrays()[0][0])
    assert torch.equal(module(inputs), result.predict(inputs))


@thing(
    PYTHON,
    "Compress an existing Flower app (its clients have `mods=[compress_mod()]`)",
    'Compressed(FedAvg(), uplink="top_k:1/4", downlink="top_k:1/4")',
)
def _drop_in(do: Callable[..., Any], folder: Path) -> None:
    strategies = pytest.importorskip("flwr.serverapp.strategy", reason="the extra `flower` is not installed")
    from flwr.app import Array

    from laconic.flower import Compressed
    from tests.flower.test_drop_in import run_steps

    alone = run_steps(folder, strategies.FedAvg(), 1, mods=[])
    exact = run_steps(folder, Compressed(strategies.FedAvg(), uplink="dense"), 1)
    np.testing.assert_allclose(exact.arrays["w"].numpy(), alone.arrays["w"].numpy(), rtol=1e-4)
    smaller = do(Compressed=Compressed, FedAvg=strategies.FedAvg)
    run_steps(folder, smaller, 2, others={"large": Array(np.ones((64, 64), np.float32))})
    for way, ratio in (("up", 3), ("down", 2)):  # a new node receives the whole model
        assert smaller.uncompressed.bytes(way) > ratio * smaller.ledger.bytes(way)
