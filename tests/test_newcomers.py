"""What a newcomer tries first: arrays or a class given to `simulate`, parts with a mistake, keys for a trial."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import laconic
from laconic.core.errors import ConfigError, DataError


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def clients() -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(0)
    return [(generator.normal(size=(20, 3)).astype(np.float32), generator.integers(0, 2, 20)) for _ in range(3)]


def test_a_list_of_arrays_and_a_class_or_a_function_repeat_bit_for_bit() -> None:
    shas = {
        laconic.simulate("fed_avg", model, clients(), rounds=2, seed=3).model_sha256 for model in (Net, lambda: Net())
    }
    assert len(shas) == 1


def test_a_class_that_needs_arguments_is_no_model() -> None:
    for model in (nn.Linear, laconic.Task, lambda inputs: nn.Linear(inputs, 2)):
        with pytest.raises(
            ConfigError, match=r"^model: .* needs arguments \(missing .*\); pass a module, as in .*lambda: "
        ):
            laconic.simulate("fed_avg", model, clients(), rounds=1)  # type: ignore[arg-type]


def test_a_trials_certificate_always_names_this_machine(tmp_path) -> None:
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    from cryptography import x509

    from laconic.flower.local_keys import make_local_keys

    keys = make_local_keys(tmp_path, 1, ["superlink.example.org"])
    certificate = x509.load_pem_x509_certificate(keys.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"superlink.example.org", "localhost"}
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_a_second_command_overwrites_no_keys(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    from laconic.flower import local_keys

    monkeypatch.setattr("sys.argv", ["local_keys", str(tmp_path / "keys"), "--nodes", "1"])
    local_keys.main()
    first = {path.name: path.read_bytes() for path in (tmp_path / "keys").iterdir()}
    assert set(first) == {"ca.crt", "superlink.crt", "superlink.key", "node-0", "node-0.pub"}
    with pytest.raises(SystemExit) as ended:
        local_keys.main()
    assert ended.value.code == 2
    assert "ca.crt exists already; choose another folder" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (tmp_path / "keys").iterdir()} == first


def test_a_pair_of_arrays_cannot_be_divided() -> None:
    with pytest.raises(DataError, match=r"a tuple cannot be divided; pass laconic.data.from_arrays\(\[\("):
        laconic.data.divide(clients()[0], clients=3, partition="iid")  # type: ignore[type-var]


@laconic.method("one_row")
class OneRow(laconic.LocalMethod):
    def local(self, cohort):  # type: ignore[no-untyped-def]
        return cohort.models[0]


@laconic.method("nothing_to_send")
class NothingToSend(laconic.LocalMethod):
    def local(self, cohort):  # type: ignore[no-untyped-def]
        return laconic.Answer(torch.zeros_like(cohort.models), own=cohort.models)

    def phases(self, uplink):  # type: ignore[no-untyped-def]
        own = laconic.Stream("own")
        return (laconic.Phase("train", self.local, self.nominal_gradients, (laconic.UPDATE, own), down=(own,)),)


@laconic.part("optimizer", "no_state")
class NoState(laconic.SGD):
    def step(self, mean, state):  # type: ignore[no-untyped-def]
        return self.server_lr * mean


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (laconic.Algorithm(OneRow()), r"'train': 'model' has shape \[26\], but \[clients, parameters\] is \[3, 26\]"),
        (laconic.Algorithm(NothingToSend()), "method 'nothing_to_send': it sends 'own', so `init` must return it"),
        (laconic.fed_avg(optimizer=NoState()), "optimizer 'no_state': `step` must return the step and the new state"),
    ],
)
def test_a_mistake_in_a_part_of_ones_own_is_named(algorithm: laconic.Algorithm, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        laconic.simulate(algorithm, Net, clients(), rounds=1, threads=1)


def test_the_name_of_arrays_says_why_it_cannot_be_loaded() -> None:
    name = laconic.data.from_arrays(clients(), classes=2).name
    with pytest.raises(laconic.ConfigError, match=rf"unknown data set '{name}'.* passed as an object cannot be loaded"):
        laconic.data.load(name)


def test_one_is_singular() -> None:
    data = laconic.data.from_arrays(clients()[:1], classes=2)
    assert repr(data) == "<arrays: 1 client, 20 + 0 examples, classification, 2 classes>"
    assert repr(laconic.simulate("fed_avg", Net, data, rounds=1)).startswith("<fed_avg: 1 round, ")
    with pytest.raises(ConfigError, match=r"participants = 2: the data has only 1 client$"):
        laconic.simulate("fed_avg", Net, data, rounds=1, participants=2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            ("fed_agv", "logistic"),
            "unknown algorithm 'fed_agv': did you mean 'fed_avg'? `laconic algorithms` lists all",
        ),
        (("fed_avg", "logistics"), "unknown model 'logistics': did you mean 'logistic'? `laconic models` lists all"),
        (("fed_cams:compressor=signs", "logistic"), "unknown compressor 'signs': did you mean 'sign'? docs/guides/"),
    ],
)
def test_a_misspelled_name_has_a_suggestion_instead_of_the_list(wrong: tuple[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        laconic.simulate(*wrong, clients(), rounds=1)
    assert str(caught.value).startswith(message) and "allowed" not in str(caught.value)


def test_a_name_like_no_other_has_the_command_that_lists_all() -> None:
    with pytest.raises(ConfigError, match=r"^unknown algorithm 'xyz': `laconic algorithms` lists all$"):
        laconic.simulate("xyz", Net, clients(), rounds=1)
    with pytest.raises(
        ConfigError, match=r"^unknown data set 'digts': did you mean 'digits'[?] `laconic datasets` lists all$"
    ):
        laconic.data.load("digts")


def test_the_table_of_the_traffic_names_its_columns() -> None:
    lines = str(laconic.simulate("fed_avg", Net, clients(), rounds=1).ledger).splitlines()
    assert lines[0].endswith("headers  bits by paper formulas") and len({len(line) for line in lines}) == 1
