"""Data as people have it: Hugging Face, Flower Datasets, CSV and Parquet files, folders of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import laconic
from laconic.core.errors import ConfigError, DataError, LaconicWarning
from laconic.data import FederatedData, LazyData, from_arrays, from_hugging_face, from_images, from_table, load

hub = pytest.importorskip("datasets")
pd = pytest.importorskip("pandas")


def people(rows: int = 60) -> dict[str, list]:
    generator = np.random.default_rng(0)
    age, weight = generator.normal(size=rows), generator.normal(size=rows)
    return {
        "age": age.round(3).tolist(),
        "weight": weight.round(3).tolist(),
        "hospital": [f"h{i % 3}" for i in range(rows)],
        "ill": ["yes" if a + w > 0 else "no" for a, w in zip(age, weight, strict=True)],
    }


def splits() -> object:
    whole = hub.Dataset.from_dict(people()).rename_column("ill", "label")
    return whole.train_test_split(test_size=0.25, seed=0)


def test_a_dataset_dict_with_a_client_column():
    data = from_hugging_face(splits(), client="hospital")
    assert isinstance(data, FederatedData) and len(data) == 3 and data.input_shape == (2,)
    assert data.labels == ("no", "yes") and len(data.test) == 15 and data.sizes().sum() == 45
    train = splits()["train"]
    assert data.client_names == tuple(dict.fromkeys(train["hospital"]))
    assert data.part([2]).client_names == data.client_names[2:]
    first = [row for row in train if row["hospital"] == train[0]["hospital"]]
    assert data.batch(0, np.arange(len(first)))[0][:, 0].tolist() == pytest.approx([row["age"] for row in first])


def test_a_dataset_dict_is_passed_to_simulate_directly():
    plain = splits().remove_columns("hospital")
    result = laconic.simulate("fed_avg", "logistic", plain, rounds=30, local_lr=0.5)
    assert result.accuracy > 0.8
    named = splits().rename_column("hospital", "client")
    assert laconic.simulate("fed_avg", "logistic", named, rounds=1).history[-1]["accuracy"] >= 0
    per_client = hub.DatasetDict({"north": plain["train"], "south": plain["train"], "test": plain["test"]})
    assert from_hugging_face(per_client).client_names == ("north", "south")
    assert len(from_hugging_face(plain, clients=5, partition="dirichlet:0.5")) == 5
    listed = [plain["train"].with_format("torch"), plain["test"].with_format("torch")]
    assert laconic.simulate("fed_avg", "logistic", listed, rounds=1).history


def test_class_names_and_images_of_hugging_face():
    features = hub.Features({"image": hub.Image(), "label": hub.ClassLabel(names=["cat", "dog", "emu"])})
    pixels = [np.full((6, 5, 3), 255 if i % 2 else 0, np.uint8) for i in range(8)]
    made = hub.Dataset.from_dict({"image": pixels, "label": [i % 2 for i in range(8)]}, features=features)
    data = from_hugging_face(made, clients=2, partition="shards:1")
    assert data.labels == ("cat", "dog", "emu") and data.classes == 3 and data.input_shape == (3, 6, 5)
    assert data.examples.inputs.dtype == torch.uint8
    assert {float(data.batch(client, np.array([0]))[0].mean()) for client in (0, 1)} == {-1.0, 1.0}


def test_a_transform_of_hugging_face_is_applied_again_for_each_batch():
    def noisy(rows):
        return {"pixels": [torch.rand(4) for _ in rows["label"]], "label": rows["label"]}

    made = hub.Dataset.from_dict({"text": ["a"] * 6, "label": [0, 1] * 3}).with_transform(noisy)
    data = from_hugging_face(made, inputs="pixels", clients=2)
    assert isinstance(data, LazyData) and len(data) == 2 and data.input_shape == (4,)
    assert data.client_names is None and data.named(["a", "b"]).part([1]).client_names == ("b",)
    one, other = (data.augmented(0, np.array([0]), torch.float32, seed)[0] for seed in (1, 2))
    assert not torch.equal(one, other) and torch.equal(one, data.augmented(0, np.array([0]), torch.float32, 1)[0])


def test_faults_of_hugging_face_data_say_what_to_do():
    words = hub.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    with pytest.raises(DataError, match="column 'text' is text; convert it to numbers or tokens first"):
        from_hugging_face(words)
    with pytest.raises(DataError, match="no target among the columns text, label2; name it: target=COLUMN"):
        from_hugging_face(words.rename_column("label", "label2"))
    ragged = hub.Dataset.from_dict({"tokens": [[1], [1, 2]], "label": [0, 1]})
    with pytest.raises(DataError, match="column 'tokens' has values of different shapes; resize or pad"):
        from_hugging_face(ragged)
    with pytest.raises(DataError, match="no column 'ward' that names clients; allowed: age"):
        from_hugging_face(splits()["train"], client="ward")
    with pytest.raises(ConfigError, match="partition 'iid': datasets has its own clients"):
        from_hugging_face(splits(), client="hospital", partition="iid")


class Partitioner:
    """The interface of a partitioner of Flower Datasets."""

    def __init__(self, parts: int) -> None:
        self.num_partitions = parts
        self.dataset = None

    def load_partition(self, partition_id: int):
        return self.dataset.shard(self.num_partitions, partition_id)


def check_partitions(partitioner: object) -> None:
    partitioner.dataset = splits()["train"].remove_columns("hospital")
    data = from_hugging_face(partitioner, test=splits()["test"].remove_columns("hospital"))
    assert len(data) == 4 and data.sizes().tolist() == [12, 11, 11, 11] and len(data.test) == 15
    assert laconic.simulate("fed_avg", "logistic", partitioner, rounds=1).history


def test_the_partitions_of_a_partitioner_are_clients():
    check_partitions(Partitioner(4))


def test_the_partitioners_of_flower_datasets():
    check_partitions(pytest.importorskip("flwr_datasets.partitioner").IidPartitioner(4))


def test_a_federated_dataset_of_flower_datasets():
    class Federated:
        """The interface of FederatedDataset, which downloads."""

        def __init__(self) -> None:
            self.partitioners = {"train": Partitioner(3)}
            self.partitioners["train"].dataset = splits()["train"].remove_columns("hospital")

        def load_partition(self, partition_id: int, split: str | None = None):
            return self.partitioners[split or "train"].load_partition(partition_id)

        def load_split(self, split: str):
            return splits()[split].remove_columns("hospital")

    data = from_hugging_face(Federated())
    assert len(data) == 3 and len(data.test) == 15


@pytest.fixture
def table(tmp_path: Path) -> Path:
    pd.DataFrame(people()).to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv"


def test_a_table_with_a_client_column(table):
    data = from_table(table, "ill", client="hospital", test=0.25)
    assert len(data) == 3 and data.labels == ("no", "yes") and data.input_shape == (2,)
    assert data.sizes().tolist() == [15, 15, 15] and len(data.test) == 15
    again = load(f"{table}:target=ill,client=hospital,test=0.25", seed=9)
    assert again.fingerprint() == data.fingerprint(), "the same rows are held out with every seed"
    rows = pd.read_csv(table)[["age", "weight"]].to_numpy(np.float32)
    kept = torch.cat([data.examples.inputs, data.test.inputs]).numpy()
    assert sorted(map(tuple, kept)) == sorted(map(tuple, rows)), "no row is lost"


def test_a_table_without_clients_is_divided(table):
    assert len(load(f"{table}:target=age,inputs=weight", clients=4)) == 4
    data = from_table(table, "ill", inputs=["age"], clients=5, partition="dirichlet:0.5")
    assert len(data) == 5 and data.input_shape == (1,)


def test_a_folder_of_files_has_one_client_per_file(tmp_path):
    whole = pd.DataFrame(people()).drop(columns="hospital")
    whole[:20].to_csv(tmp_path / "north.csv", index=False)
    whole[20:45].to_parquet(tmp_path / "south.parquet")
    whole[45:].to_csv(tmp_path / "test.csv", index=False)
    data = load(f"{tmp_path}:target=ill")
    assert data.sizes().tolist() == [20, 25] and len(data.test) == 15
    (tmp_path / "west.csv").write_text("age,weight,ill\n")
    with pytest.raises(DataError, match=r"client 'west' has no examples; leave such clients out with --skip-empty"):
        load(f"{tmp_path}:target=ill")
    assert load(f"{tmp_path}:target=ill", skip_empty=True).client_names == ("north", "south")


def test_a_cell_that_is_no_number_is_named_with_its_line(tmp_path):
    columns = people()
    columns["weight"] = [*map(str, columns["weight"])]
    columns["weight"][7] = "n/k"
    frame = pd.DataFrame(columns)
    frame.to_csv(tmp_path / "people.csv", index=False)
    message = r"column 'weight' has 'n/k' in {}; write a number, or drop the row$"
    with pytest.raises(DataError, match=message.format("line 9")):
        load(f"{tmp_path / 'people.csv'}:target=ill,client=hospital")
    with pytest.raises(DataError, match=message.format("row 7")):
        from_table(frame, "ill", client="hospital")
    with pytest.raises(DataError, match="inputs: column 'weight' has no numbers, such as 'n/k'"):
        from_arrays([(frame[["age", "weight"]], frame["ill"])])


def test_faults_of_tables_say_what_to_do(table, tmp_path):
    with pytest.raises(
        DataError,
        match="column 'hospital' has no numbers, such as 'h0'; is it the column of clients\\? client=hospital",
    ):
        load(f"{table}:target=ill")
    with pytest.raises(DataError, match="no column 'sick'; allowed: age, weight, hospital, ill"):
        load(f"{table}:target=sick")
    with pytest.raises(ConfigError, match="'tagret' is unknown; allowed: target=, client="):
        load(f"{table}:tagret=ill")
    with pytest.raises(DataError, match=r"nowhere\.csv: no such file"):
        load("nowhere.csv:target=ill")
    with pytest.raises(ConfigError, match="partition 'iid': people has its own clients"):
        load(f"{table}:target=ill,client=hospital", partition="iid")
    broken = pd.DataFrame(people())
    broken.loc[4, "age"] = np.nan
    broken.to_csv(tmp_path / "broken.csv", index=False)
    with pytest.raises(DataError, match=r"broken\.csv: column 'age' has no value in line 6; fill it in"):
        load(f"{tmp_path / 'broken.csv'}:target=ill,client=hospital")
    with pytest.raises(ConfigError, match=r"test = 1\.0: a share from 0 to below 1"):
        load(f"{table}:target=ill,client=hospital,test=1")


def files(folder: Path, **tables: dict[str, list]) -> str:
    """A folder with CSV files, as the name of a data set."""
    for name, columns in tables.items():
        pd.DataFrame(columns).to_csv(folder / f"{name}.csv", index=False)
    return f"{folder}:target=y"


SMALL = {"x": [0.0, 1.0, 0.5, 0.2], "y": [0, 1, 1, 0]}


def test_a_folder_has_one_test_set_and_suffixes_of_any_case(tmp_path):
    name = files(tmp_path, ann=SMALL, bob=SMALL, validation=SMALL)
    (tmp_path / "bob.csv").rename(tmp_path / "bob.CSV")
    data = load(name)
    assert data.client_names == ("ann", "bob") and len(data.test) == 4
    two = {column: values[:2] for column, values in SMALL.items()}
    files(tmp_path, test=two)
    assert len(load(name).test) == 2 and load(name).client_names == ("ann", "bob")
    pd.DataFrame(SMALL).to_parquet(tmp_path / "TEST.parquet")
    with pytest.raises(DataError, match=r"TEST.parquet and test.csv are both test sets; keep one of them"):
        load(name)


@pytest.mark.parametrize("order", [("ann", "bob"), ("bob", "ann")])
@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            {"z": [1, 2, 3, 4]},
            r"{b}.csv has the column 'z', but {a}.csv does not; add or remove it, or list the inputs",
        ),
        ({"y": ["no", "yes", "yes", "no"]}, r"{a}.csv has numbers in column 'y', but {b}.csv has text"),
    ],
)
def test_files_that_do_not_agree_are_named(tmp_path, order, other, said):
    a, b = order
    name = files(tmp_path, **{a: SMALL, b: SMALL | other})
    with pytest.raises(DataError, match=said.format(a=a, b=b)):
        load(name)
    if "z" in other:
        assert load(f"{name},inputs=x").input_shape == (1,)


def test_an_infinite_number_names_file_and_line(tmp_path):
    name = files(tmp_path, ann=SMALL, bob=SMALL | {"x": [0.0, 1.0, np.inf, 0.2]})
    with pytest.raises(DataError, match=r"bob.csv: column 'x' is infinite in line 4"):
        load(name)


def paint(path: Path, gray: int, size: tuple[int, int] = (4, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, gray).save(path)


def test_folders_of_images_by_class(tmp_path):
    for number in range(5):
        paint(tmp_path / "dark" / f"{number}.png", 0)
        paint(tmp_path / "light" / f"{number}.png", 255)
    data = load(f"{tmp_path}", clients=2)
    assert data.labels == ("dark", "light") and data.input_shape == (1, 4, 4) and len(data) == 2
    assert len(data.test) == 2 and data.sizes().sum() == 8
    inputs, targets = data.batch(0, np.arange(data.size(0)))
    assert torch.equal(inputs[:, 0, 0, 0] > 0, targets == 1)
    paint(tmp_path / "light" / "large.png", 255, (9, 8))
    with pytest.raises(DataError, match=r"has size 9 x 8, .* 4 x 4; resize all of them: size=32"):
        load(f"{tmp_path}")
    assert load(f"{tmp_path}:size=6").input_shape == (1, 6, 6)


def test_folders_of_images_by_client_and_class(tmp_path):
    for client in ("ann", "bob"):
        paint(tmp_path / "train" / client / "0" / "a.png", 0)
        paint(tmp_path / "train" / client / "1" / "b.jpg", 255)
    paint(tmp_path / "test" / "1" / "c.png", 255)
    data = from_images(tmp_path)
    assert len(data) == 2 and data.sizes().tolist() == [2, 2] and data.test.targets.tolist() == [1]
    (tmp_path / "train" / "eve").mkdir()
    with pytest.raises(DataError, match=r"client 2 has no examples; .*--skip-empty"):
        from_images(tmp_path)
    assert from_images(tmp_path, skip_empty=True).client_names == ("ann", "bob")
    paint(tmp_path / "train" / "stray.png", 1)
    with pytest.raises(DataError, match="all be in class/ or all in client/class/ folders"):
        from_images(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images"):
        load(str(tmp_path / "empty"))


def folders(root: Path, tree: str, value: int = 0) -> None:
    """Two images in each folder of a list."""
    for folder in tree.split():
        for number in range(2):
            paint(root / folder / f"{number}.png", value)


def test_a_folder_of_validation_is_used_only_without_a_test_and_names_have_any_case(tmp_path):
    folders(tmp_path, "Train/cat Train/dog val/cat val/dog val/emu")
    with pytest.warns(LaconicWarning, match="the test has examples of class 'emu', but training has none"):
        data = from_images(tmp_path, clients=2)
    assert len(data.test) == 6 and data.labels == ("cat", "dog", "emu")
    folders(tmp_path, "Test/cat")
    data = from_images(tmp_path, clients=2)
    assert len(data.test) == 2 and data.labels == ("cat", "dog"), "no class of a folder that is not used"
    folders(tmp_path, "extra/cow")
    with pytest.raises(DataError, match="the folder 'extra' is beside 'Train', where only test or"):
        from_images(tmp_path)


def test_a_class_may_be_named_test(tmp_path):
    folders(tmp_path, "control test")
    data = from_images(tmp_path, clients=2)
    assert data.labels == ("control", "test") and {*data.targets()} == {0, 1}


def test_a_class_without_images_that_can_be_read_is_named(tmp_path):
    folders(tmp_path, "cat dog")
    paint(tmp_path / "emu" / "0.tif", 0)
    assert from_images(tmp_path, clients=2).labels == ("cat", "dog", "emu")
    (tmp_path / "owl").mkdir()
    with pytest.raises(DataError, match=r"owl: no images \(.*\) of this class; convert them, or remove the folder"):
        from_images(tmp_path)
    (tmp_path / "owl" / "0.heic").write_bytes(b"")
    with pytest.raises(DataError, match=r"of this class, but 0.heic; convert them"):
        from_images(tmp_path)


def test_sizes_that_differ_between_clients_say_what_to_do(tmp_path):
    folders(tmp_path, "ann/cat")
    paint(tmp_path / "bob" / "cat" / "0.png", 0, (9, 8))
    with pytest.raises(DataError, match=r"has size 9 x 8, .* 4 x 4; resize all of them: size=32"):
        from_images(tmp_path)


def test_images_of_16_bits_keep_their_contrast(tmp_path):
    levels = {"dark": 3000, "light": 40000}
    for name, level in levels.items():
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.fromarray(np.full((4, 4), level, np.uint16)).save(tmp_path / name / f"{number}.png")
    data = from_images(tmp_path, clients=1)
    found = [data.examples.inputs[data.examples.targets == number].unique().tolist() for number in (0, 1)]
    assert found == [[round(level / 257)] for level in levels.values()]
    files = [str(tmp_path / name / "0.png") for name in levels]
    table = hub.Dataset.from_dict({"image": files, "label": [0, 1]}).cast_column("image", hub.Image())
    assert from_hugging_face(table, clients=1).examples.inputs.amax((1, 2, 3)).tolist() == [12, 156]
    Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(tmp_path / "dark" / "deep.tif")
    with pytest.raises(DataError, match=r"deep.tif has pixels of 32 bits \(mode F\), .* convert it to 8 or 16 bits"):
        from_images(tmp_path)


def test_nan_in_arrays_names_the_client():
    clients = [(np.zeros((2, 1)), np.array([0, 1])), (np.array([[0.0], [np.nan]]), np.array([0, 1]))]
    with pytest.raises(DataError, match="client 1: input 1 contains nan"):
        laconic.simulate("fed_avg", "logistic", clients)


def test_float64_inputs_stay_float64_in_a_run_in_float64() -> None:
    """float32 keeps 24 bits: 1 + 2^-40 would become 1."""
    inputs = 1 + 2.0**-40 * np.arange(6).reshape(6, 1)
    data = laconic.data.from_arrays([(inputs, inputs[:, 0])])
    exact, targets = data.batch(0, np.arange(6), torch.float64)
    assert np.array_equal(exact.numpy(), inputs) and np.array_equal(targets.numpy(), inputs[:, 0])
    rounded, _ = data.batch(0, np.arange(6), torch.float32)
    assert rounded.dtype == torch.float32 and rounded.eq(1).all()
