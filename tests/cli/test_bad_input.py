"""Bad input: exit code 2, one line that names what was wrong and what is allowed, and nothing half-written."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

# Each case: the arguments of `laconic run`, and what the one line must contain.
SETTINGS = {
    "more participants than clients": (
        ["--clients", "8", "--participants", "9"],
        ["participants = 9", "only 8 clients"],
    ),
    "no rounds": (["--rounds", "0"], ["rounds = 0", "greater than or equal to 1"]),
    "a negative local rate": (["--local-lr", "-1"], ["method.local_lr = -1", "greater than 0"]),
    "a local rate that is no number": (["--local-lr", "nan"], ["method.local_lr = nan", "finite"]),
    "a negative server rate": (["--server-lr", "-0.5"], ["optimizer.server_lr = -0.5", "greater than or equal to 0"]),
    "a local rate that float32 does not have": (
        ["--local-lr", "1e39"],
        ["method.local_lr = 1e+39", "less than or equal to 3.4e+38"],
    ),
    "a server rate that float32 does not have": (["--server-lr", "1e39"], ["optimizer.server_lr = 1e+39", "3.4e+38"]),
    "a rate without its owner": (["--lr", "0.1"], ["'--lr'", "did you mean '--local-lr' or '--server-lr'?"]),
    "a rate without its owner, in a label": (
        ["--algorithm", "fed_avg:lr=0.1"],
        ["'lr'", "did you mean 'local_lr' or 'server_lr'?"],
    ),
    "a misspelled option": (["--ruonds", "3"], ["'--ruonds'", "did you mean '--rounds'?"]),
    "an option in the singular": (["--round", "3"], ["'--round'", "did you mean '--rounds'?"]),
    "a rate in full words": (
        ["--learning-rate", "1"],
        ["'--learning-rate'", "did you mean '--local-lr' or '--server-lr'?"],
    ),
    "an algorithm without its option": (["fed_avg"], ["config 'fed_avg'", "no such file", "--algorithm fed_avg"]),
    "algorithms with a comma": (["--algorithm", "fed_avg,fed_ams"], ["'fed_avg,fed_ams'", "laconic compare", "spaces"]),
    "a decay of one": (
        ["--algorithm", "fed_adam", "--set", "optimizer.beta2=1"],
        ["optimizer.beta2 = 1", "less than 1"],
    ),
    "no participants": (["--participants", "0"], ["participants = 0", "greater than or equal to 1"]),
    "no clients": (["--clients", "0"], ["clients = 0", "greater than or equal to 1"]),
    "more clients than examples": (["--clients", "100000"], ["clients is 100000", "examples"]),
    "an empty batch": (["--batch-size", "0"], ["method.batch_size = 0", "greater than or equal to 1"]),
    "a negative seed": (["--seed", "-1"], ["seed = -1", "greater than or equal to 0"]),
    "a negative concentration": (["--partition", "dirichlet:-1"], ["dirichlet:-1", "greater than 0"]),
    "shards without a number": (["--partition", "shards:x"], ["shards:x", "integer", "shards:PER_CLIENT"]),
    "natural clients that do not exist": (["--partition", "natural"], ["natural", "digits has no natural clients"]),
    "steps and epochs": (
        ["--local-steps", "2", "--local-epochs", "2"],
        ["--local-steps", "--local-epochs", "only one"],
    ),
    "a misspelled algorithm": (
        ["--algorithm", "fed_agv"],
        ["'fed_agv'", "did you mean 'fed_avg'?", "laconic algorithms"],
    ),
    "a misspelled data set": (["--dataset", "digit"], ["'digit'", "did you mean 'digits'?", "laconic datasets"]),
    "a misspelled model": (["--model", "logistik"], ["'logistik'", "did you mean 'logistic'?", "laconic models"]),
    "a misspelled partition": (["--partition", "irichlet:0.3"], ["'irichlet'", "did you mean 'dirichlet'?"]),
    "a misspelled sampling": (
        ["--sampling", "weigted"],
        ["sampling = 'weigted'", "'uniform', 'weighted' or 'poisson'"],
    ),
    "a store that there is not": (["--store", "tape"], ["store = 'tape'", "'memory' or 'disk'"]),
    "a cache that is no size": (["--store-cache", "large"], ["store_cache = 'large'", "500MB"]),
    "a misspelled batch order": (["--batch-order", "shufled"], ["batch_order = 'shufled'", "'shuffled' or 'fixed'"]),
    "a misspelled part": (["--set", "optimiser.beta2=0.9"], ["'optimiser'", "did you mean 'optimizer'?"]),
    "a misspelled parameter": (
        ["--algorithm", "fed_adam", "--set", "optimizer.beta22=0.9"],
        ["'beta22'", "did you mean 'beta2'?", "epsilon"],
    ),
    "a parameter that the part does not have": (
        ["--set", "optimizer.beta2=0.9"],
        ["'beta2'", "optimizer 'sgd'", "momentum, nesterov, noise_limit, server_lr"],
    ),
    "a misspelled key by --set": (["--set", "ruonds=3"], ["'ruonds'", "did you mean 'rounds'?"]),
    "a misspelled name of a part": (["--set", "optimizer.name=yogy"], ["'yogy'", "did you mean 'yogi'?"]),
    "a setting without a value": (["--set", "optimizer.beta2"], ["'optimizer.beta2'", "slot.parameter=value"]),
    "a word for a number": (["--set", "rounds=many"], ["rounds = 'many'", "integer"]),
    "a target that is no accuracy": (["--target", "-3"], ["--target -3", "between 0 and 1"]),
    "a device that is not here": (["--device", "cuda:77"], ["device = 'cuda:77'", "not usable here"]),
    "a device that does not exist": (["--device", "toaster"], ["device = 'toaster'", "not usable here"]),
    "a device without memory": (["--device", "meta"], ["device = 'meta'", "not usable here"]),
    "sizes for a model without": (["--model", "logistic:3"], ["logistic:3", "takes no sizes"]),
    "a model for other inputs": (["--model", "char_gru"], ["char_gru", "1x8x8"]),
    "a model's function that is not there": (["--model", "nets.py:net"], ["nets.py:net", "there is no file 'nets.py'"]),
    "a data file that is not there": (["--dataset", "own.py"], ["own.py", "no such file"]),
    "an augmentation that is not there": (
        ["--augment", "crop:4+flop"],
        ["augment = 'crop:4+flop'", "'flop'", "did you mean 'flip'?"],
    ),
    "a misspelled augmentation": (["--augment", "flop"], ["augment = 'flop'", "did you mean 'flip'?"]),
    "a table that is not there": (["--dataset", "people.csv:target=ill"], ["people.csv: no such file"]),
    "a folder of tables that is not there": (["--dataset", "sites:target=ill"], ["'sites'", "no file or folder"]),
    "a table that is not there, and no target": (["--dataset", "people.parquet"], ["people.parquet: no such file"]),
    "empty clients of data that has none": (["--skip-empty"], ["skip_empty: digits", "leave skip_empty out"]),
    "a value for a flag": (["--skip-empty", "yes"], ["config 'yes'", "no such file"]),
    "an unknown metric": (["--metrics", "nosuch"], ["unknown metric 'nosuch'", "f1", "recall"]),
    "an argument that the local optimizer does not have": (
        ["--local-optimizer", "adam:beta3=1"],
        ["method.local_optimizer = 'adam:beta3=1'", "'beta3' is not a setting", "beta1=…,beta2=…"],
    ),
    "a state that the local optimizer does not have": (
        ["--local-optimizer-state", "averaged"],
        ["method.local_optimizer_state = 'averaged'", "'sgd' has no state", "use momentum, nesterov, adam or adamw"],
    ),
    "a clip that would not bound everything": (
        ["--local-optimizer", "adam", "--local-optimizer-state", "averaged", "--clip-updates", "1"],
        ["defense.clip = 1.0", "'first_moment'", "leave it out, or use defense.refuse"],
    ),
    "an earlier round of a new run": (["--from-round", "3"], ["--from-round: only with --resume"]),
    "an earlier round of no run": (["--resume", "--from-round", "3"], ["from_round = 3", "there is no run in 'out'"]),
    "a folder of data that is not there": (["--dataset", "mnist", "--data-dir", "nowhere"], ["data_dir 'nowhere'"]),
    "a folder of data for a file of one's own": (
        ["--dataset", "own.py", "--data-dir", "data"],
        ["data_dir 'data'", "own.py reads its own files", "leave data_dir out"],
    ),
    "an unknown compressor": (["--compressor", "ternary"], ["unknown compressor 'ternary'", "--import FILE"]),
    "data that is not there": (["--dataset", "mnist"], ["mnist/train-images", "not on this machine", "switched off"]),
    "a config that is not there": (["absent.toml"], ["config 'absent.toml'", "no such file"]),
    "a training function that is not there": (
        ["--set", "method.name=own_training", "--set", "method.function=loops.py:train"],
        ["method.function", "there is no file 'loops.py'"],
    ),
    "a training function that is not named": (["--set", "method.name=own_training"], ["method.function", "required"]),
}


def refused(forked, tmp_path: Path, *arguments: str) -> str:
    """The one line, once it is clear that it is one and that nothing was written."""
    before = sorted(tmp_path.rglob("*"))
    done = forked("run", *arguments, "--out", "out")
    assert done.code == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.endswith("\n") and done.stderr.count("\n") == 1, (
        done.stderr
    )
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in path.parts] == before
    return done.stderr


@pytest.mark.parametrize(("arguments", "parts"), SETTINGS.values(), ids=SETTINGS)
def test_a_setting_that_cannot_work(forked, tmp_path: Path, arguments: list[str], parts: list[str]) -> None:
    line = refused(forked, tmp_path, *arguments)
    assert [part for part in parts if part not in line] == [], line


def test_a_table_without_a_target(forked, tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("age,ill\n1,0\n")
    line = refused(forked, tmp_path, "--dataset", "people.csv")
    assert "name the column to predict" in line and "people.csv:target=COLUMN" in line


def test_an_earlier_round_without_a_checkpoint(forked, tmp_path: Path) -> None:
    assert forked("run", "--model", "logistic", "--strategy", "loop", "--rounds", 1, "--out", "out").code == 0
    line = refused(forked, tmp_path, "--resume", "--from-round", "3")
    assert "from_round = 3: no such checkpoint; there are those of rounds: 1" in line


CONFIGS = {
    "a misspelled key": ("local_stesp = 3\n", ["'local_stesp'", "did you mean 'local_steps'?", "eval_every"]),
    "a misspelled table": ("[optimiser]\nbeta2 = 0.9\n", ["'optimiser'", "did you mean 'optimizer'?"]),
    "a misspelled key in a table": ("[method]\nlocal_rl = 0.9\n", ["'local_rl'", "did you mean 'local_lr'?"]),
    "a misspelled key of the numerics": ("[numerics]\nstrategie = 'loop'\n", ["strategie", "strategy"]),
    "an impossible value": ("rounds = -4\n", ["rounds = -4", "greater than or equal to 1"]),
    "a value of the wrong type": ("rounds = [4]\n", ["rounds = [4]", "integer"]),
    "a value where a table should be": ("method = 3\n", ["method = 3", "a table is allowed"]),
    "steps and epochs in its table": (
        "[method]\nlocal_steps = 2\nlocal_epochs = 3\n",
        ["local_steps = 2", "local_epochs = 3", "only one"],
    ),
    "steps and epochs at its top": ("local_steps = 2\nlocal_epochs = 3\n", ["local_steps", "local_epochs", "only one"]),
    "no TOML": ("rounds = = 3\n", ["config 'bad.toml'", "not valid TOML", "line 1"]),
}


@pytest.mark.parametrize(("text", "parts"), CONFIGS.values(), ids=CONFIGS)
def test_a_config_that_cannot_work(forked, tmp_path: Path, text: str, parts: list[str]) -> None:
    (tmp_path / "bad.toml").write_text(text)
    line = refused(forked, tmp_path, "bad.toml")
    assert [part for part in parts if part not in line] == [], line


def test_a_config_that_is_no_text(forked, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    assert "not valid TOML" in refused(forked, tmp_path, "bad.toml")


CLIENTS = """
import numpy as np


def clients():
    inputs = np.ones((4, 3), dtype=np.float32)
    labels = np.array([0, 1, 1, 0])
    {change}
    return {{"clients": [(inputs, labels), (inputs.copy(), labels.copy())], "classes": 2}}
"""
DATA = {
    "NaN": ("inputs[2, 1] = np.nan", ["input 2 contains nan", "finite"]),
    "infinity": ("inputs[0, 0] = -np.inf", ["input 0 contains -inf", "finite"]),
    "a label too high": ("labels[3] = 2", ["label 2 at index 3", "allowed: 0..1"]),
    "a negative label": ("labels[0] = -1", ["label -1 at index 0", "is negative; labels are numbered from 0"]),
    "a label too few": ("labels = labels[:3]", ["4 inputs but 3 targets"]),
    "nobody at all": ("return []", ["non-empty list"]),
    "an error": ("raise RuntimeError('one\\ntwo')", ["RuntimeError", "one"]),
}


@pytest.mark.parametrize(("change", "parts"), DATA.values(), ids=DATA)
def test_a_persons_data_with_a_fault(forked, tmp_path: Path, change: str, parts: list[str]) -> None:
    (tmp_path / "own.py").write_text(CLIENTS.format(change=change))
    line = refused(forked, tmp_path, "--dataset", "own.py")
    assert "own.py" in line
    assert [part for part in parts if part not in line] == [], line


def test_the_same_data_without_a_fault_runs(forked, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CLIENTS.format(change=""))
    done = forked("run", "--dataset", "own.py", "--model", "logistic", "--rounds", 1, "--out", "out", "--json")
    assert done.code == 0, done.stderr


MODELS = """
from torch import nn


def net():
    return {made}
"""
NETS = {
    "too few outputs": ("nn.Sequential(nn.Flatten(), nn.Linear(64, 7))", ["7 outputs", "labels go from 0 to 9"]),
    "other inputs": ("nn.Sequential(nn.Flatten(), nn.Linear(63, 10))", ["does not fit the data", "(2, 1, 8, 8)"]),
    "an output of another shape": ("nn.Linear(8, 10)", ["output has shape (2, 1, 8, 10)", "labels of shape (2,)"]),
    "nothing to train": ("nn.Flatten()", ["without trainable parameters"]),
    "no module": ("7", ["returned int", "torch.nn.Module"]),
}


@pytest.mark.parametrize(("made", "parts"), NETS.values(), ids=NETS)
def test_a_persons_model_that_does_not_fit(forked, tmp_path: Path, made: str, parts: list[str]) -> None:
    (tmp_path / "nets.py").write_text(MODELS.format(made=made))
    line = refused(forked, tmp_path, "--model", "nets.py:net")
    assert [part for part in parts if part not in line] == [], line


def test_a_data_file_with_another_checksum(forked, tmp_path: Path) -> None:
    folder = tmp_path / "data/mnist"
    folder.mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{name}-ubyte.gz").write_bytes(gzip.compress(b"not what was published"))
    line = refused(forked, tmp_path, "--dataset", "mnist", "--data-dir", "data")
    assert "train-images-idx3-ubyte.gz" in line and "expected" in line and "sha256" in line


def test_an_out_that_cannot_be_made(forked, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = forked("run", "--model", "logistic", "--rounds", 1, "--out", "file/run")
    assert (done.code, done.stderr.count("\n")) == (2, 1)
    assert "file/run" in done.stderr
    done = forked("tune", "--model", "logistic", "--rounds", 1, "--out", "nowhere/tuned.toml")
    assert (done.code, done.stderr.count("\n")) == (2, 1)
    assert "nowhere" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["fed_avg", "fed_agv"],
        ["fed_avg", "fed_ams:beta22=3"],
        ["fed_avg", "fed_ams:server_lr=-1"],
        ["fed_avg", "--local-steps", "2", "--local-epochs", "2"],
        ["fed_avg", "--participants", "900"],
        ["fed_avg", "fed_ams:participants=900"],
        ["fed_avg", "fed_ams:model=logistik"],
    ],
)
def test_a_comparison_with_one_fault_is_refused_before_any_run(forked, tmp_path: Path, arguments: list[str]) -> None:
    done = forked("compare", *arguments, "--model", "logistic", "--rounds", 1, "--out", "all")
    assert done.code == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "all").exists()


USAGE = {
    "a misspelled command": (["runn"], ["No such command 'runn'. Did you mean 'run'?\n"]),
    "seeds by their numbers": (
        ["compare", "fed_avg", "--seeds", "0,1,2"],
        ["--seeds 0,1,2", "number of seeds", "such as 3"],
    ),
    "a comparison of nothing": (["compare"], ["ALGORITHM", "laconic compare fed_avg fed_laconic"]),
    "a data set of the listing": (["datasets", "foo"], ["laconic datasets takes no name", "--dataset NAME"]),
    "an unknown reproduction": (
        ["reproduce", "nothing"],
        ["unknown reproduction 'nothing': `laconic reproduce --list`"],
    ),
    "a misspelled reproduction": (["reproduce", "frontie"], ["did you mean 'frontier'?", "--list"]),
}


@pytest.mark.parametrize(("arguments", "parts"), USAGE.values(), ids=USAGE)
def test_a_command_that_cannot_work(forked, arguments: list[str], parts: list[str]) -> None:
    done = forked(*arguments)
    assert (done.code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert all(part in done.stderr for part in parts), done.stderr
    assert done.stderr.count("id you mean") <= 1 and len(done.stderr) < 120


def test_a_real_process_says_the_same(laconic, tmp_path: Path) -> None:
    done = laconic("run", "--rounds", "0", "--out", "out")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == "error: rounds = 0: must be greater than or equal to 1\n"
    assert list(tmp_path.iterdir()) == []


LABELS = """
import numpy as np
def clients():
    return [(np.zeros((4, 2), "float32"), np.array([1, 2, 1, 2])) for _ in range(2)]
"""


def test_doubtful_data_is_one_line_once(forked, tmp_path):
    (tmp_path / "own.py").write_text(LABELS)
    done = forked("run", "--dataset", "own.py", "--model", "logistic", "--rounds", 1, "--out", "out", "--json")
    (line,) = [line for line in done.stderr.splitlines() if "class 0" in line]
    assert done.code == 0 and line.startswith("warning: own: the labels are 1..2; class 0 has no examples")


def test_damaged_files_of_searches_and_runs_are_named(forked, small, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    done = forked("sweep", "bad.toml", "--try", "local_lr=0.1")
    assert (done.code, done.stderr.count("\n")) == (2, 1) and "config 'bad.toml': not valid TOML" in done.stderr
    assert forked("run", *small, "--rounds", 1, "--out", "run", "--no-report").code == 0
    for damage in (b"\xff", b"[[1], 2]", b"7", b'[["a"]]'):
        (tmp_path / "run/label_counts.json").write_bytes(damage)
        done = forked("run", "run", "--resume", "--rounds", 2, "--no-report")
        assert done.code == 2 and "Traceback" not in done.stderr, done.stderr
        assert "label_counts.json': not a table of label counts" in done.stderr.splitlines()[-1]
    pytest.importorskip("optuna", reason="the extra `sweep` is not installed")
    search = ("sweep", "--algorithm", "fed_avg", *small, "--rounds", 1, "--try", "local_lr=0.1,0.2", "--optuna", 1)
    assert forked(*search, "--out", "s").code == 0
    good = (tmp_path / "s/trials.jsonl").read_bytes()
    for damage in (b"\xff\xfe\n", b'{"local_lr": \n', b"[" * 100_000):
        (tmp_path / "s/trials.jsonl").write_bytes(damage + good)
        done = forked(*search, "--out", "s", "--resume")
        assert done.code == 2 and "Traceback" not in done.stderr, done.stderr
        assert "trials.jsonl', line 1: not valid JSON" in done.stderr.splitlines()[-1]
