"""Batches with several named inputs: models of Hugging Face, built from a config, train with `simulate`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import laconic
from laconic.core.errors import ConfigError, DataError
from laconic.core.task import classification, next_token
from laconic.data import from_arrays, from_hugging_face
from laconic.data.owned import part_of

hub = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")


def sentences(rows: int = 80, length: int = 8) -> dict[str, list]:
    generator = np.random.default_rng(0)
    lengths = generator.integers(3, length + 1, rows)
    ids = generator.integers(5, 20, (rows, length))
    labels = generator.integers(0, 2, rows)
    ids[:, 0] = 3 + labels
    mask = np.arange(length) < lengths[:, None]
    return {
        "text": ["words"] * rows,
        "input_ids": np.where(mask, ids, 0).tolist(),
        "attention_mask": mask.astype(int).tolist(),
        "label": labels.tolist(),
    }


def tokens() -> object:
    return hub.Dataset.from_dict(sentences()).train_test_split(0.25, seed=0)


def bert() -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=20, max_position_embeddings=16, num_labels=2, **sizes)
    return transformers.BertForSequenceClassification(config)


def gpt() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=20, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    return transformers.GPT2LMHeadModel(config)


def test_a_small_bert_trains_on_a_dataset_dict():
    def train(**settings):
        settings |= {"rounds": 12, "participants": 6, "local_lr": 0.3, "local_steps": 4}
        data = from_hugging_face(tokens(), clients=6, partition="iid")
        return laconic.simulate(laconic.fed_avg, bert, data, **settings)

    result = train(threads=1)
    assert result.accuracy > 0.8, "the first token gives the class away"
    assert result.model_sha256 == train(threads=2, chunk=1).model_sha256


def adapted() -> nn.Module:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"], lora_dropout=0.1)
    return peft.get_peft_model(bert(), config)


def test_a_small_bert_trains_with_lora():
    data = from_hugging_face(tokens(), clients=4)
    result = laconic.simulate(laconic.fed_cams(compressor="sign"), adapted, data, rounds=2, local_lr=0.1)
    assert result.history[-1]["loss"] < 2 and result.ledger.bytes("up") < 4 * 2 * 400, "only the adapter is sent"


@pytest.mark.parametrize("algorithm", ["fed_cams", "fed_laconic"])
def test_a_small_bert_with_lora_resumes_bit_for_bit(algorithm, tmp_path):
    def train(rounds: int, **settings) -> laconic.Result:
        data = from_hugging_face(tokens(), clients=2)
        return laconic.simulate(algorithm, adapted, data, rounds=rounds, local_steps=2, threads=1, **settings)

    train(2, out=tmp_path / "run")
    resumed = train(4, out=tmp_path / "run", resume=True)
    assert len(resumed.history) == 4 and resumed.model_sha256 == train(4).model_sha256


def test_a_small_gpt_trains_on_next_tokens_and_padding_does_not_count():
    lines = tokens().remove_columns("label")
    result = laconic.simulate(laconic.fed_avg, gpt, lines, rounds=2, participants=4, local_lr=0.1)
    assert 0 < result.loss < 4
    data = from_hugging_face(lines)
    assert data.kind == "next_token" and data.input_names == ("input_ids", "attention_mask") and data.classes == 20
    ids, mask, targets = data.test.batch(torch.arange(len(data.test)))
    rows = torch.tensor(lines["test"]["input_ids"])
    attended = torch.tensor(lines["test"]["attention_mask"])[:, 1:] == 1
    assert ids.shape == mask.shape == targets.shape == (20, 7)
    assert torch.equal(ids, rows[:, :-1]) and torch.equal(targets, torch.where(attended, rows[:, 1:], -100))


def test_ignored_targets_count_neither_in_loss_nor_in_accuracy():
    table = nn.Embedding(4, 4)
    ids, targets = torch.tensor([[0, 1], [2, 3]]), torch.tensor([[1, -100], [3, 0]])
    means = next_token(table).measure(table, (ids, targets))
    logits, kept = table(ids).flatten(0, 1)[[0, 2, 3]], torch.tensor([1, 3, 0])
    assert torch.allclose(means["loss"], nn.functional.cross_entropy(logits, kept))
    assert means["accuracy"] == (logits.argmax(-1) == kept).float().mean()


def tagged() -> object:
    """Each token has a class, padding has none."""
    rows = sentences()
    ids, mask = np.array(rows["input_ids"]), np.array(rows["attention_mask"])
    columns = {"input_ids": ids, "attention_mask": mask, "labels": np.where(mask == 1, ids % 3, -100)}
    return hub.Dataset.from_dict(columns).train_test_split(0.25, seed=0)


def tagger() -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=20, num_labels=3, hidden_dropout_prob=0.0, **sizes)
    config.attention_probs_dropout_prob = 0.0
    return transformers.BertForTokenClassification(config)


def test_a_class_per_token_has_the_loss_that_the_model_computes_itself():
    data = from_hugging_face(tagged(), clients=4, kind="per_position")
    assert data.classes == 3 and data.input_names == ("input_ids", "attention_mask")
    torch.manual_seed(0)
    module, settings = tagger(), {"rounds": 3, "local_lr": 0.3, "threads": 1}
    ours = laconic.simulate("fed_avg", module, data, metrics="f1,iou", **settings)
    own = laconic.simulate("fed_avg", laconic.Task(module), data, **settings)
    assert ours.loss == pytest.approx(own.loss, rel=1e-4) and ours.loss < 1
    rows = tagged()["test"].with_format("torch")[:]
    logits = ours.predict({name: rows[name] for name in data.input_names})
    counted = rows["labels"] != -100
    assert ours.accuracy == pytest.approx(float((logits.argmax(-1) == rows["labels"])[counted].float().mean()))
    assert {"f1", "iou"} <= {*ours.metrics} and "accuracy" not in own.metrics


def test_a_class_per_pixel_with_the_classes_in_the_second_dimension():
    generator = np.random.default_rng(0)
    images = generator.normal(size=(12, 1, 5, 4)).astype(np.float32)
    labels = (images[:, 0] > 0).astype(np.uint8)
    data = from_arrays([(images[:6], labels[:6]), (images[6:], labels[6:])], (images, labels), kind="per_position")
    result = laconic.simulate("fed_avg", nn.Conv2d(1, 2, 3, padding=1), data, rounds=1)
    logits, wanted = result.predict(images), torch.from_numpy(labels).long()
    assert result.loss == pytest.approx(float(nn.functional.cross_entropy(logits, wanted)), rel=1e-5)
    assert result.accuracy == pytest.approx(float((logits.argmax(1) == wanted).float().mean()))
    with pytest.raises(DataError, match="for a class per token or pixel pass kind='per_position'"):
        from_arrays([(images, labels)])
    with pytest.raises(DataError, match="per_position needs a class for every token or pixel"):
        from_arrays([(images, labels[:, 0, 0])], kind="per_position")
    with pytest.raises(DataError, match="label -5 at index 2"):
        from_arrays([(images, np.where(np.arange(12) == 2, -5, 1)[:, None, None] * labels)], kind="per_position")


class Scored(nn.Module):
    """A module that only returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs, labels):
        return {"loss": nn.functional.cross_entropy(self.layer(inputs), labels)}


def test_a_module_may_compute_its_own_loss():
    clients = [(np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1]))] * 2
    module = Scored()
    own = laconic.simulate("fed_avg", laconic.Task(module), clients, rounds=2, weighting="uniform")
    usual = laconic.simulate(
        "fed_avg", module.layer, clients, rounds=2, weighting="uniform", numerics={"strategy": "loop"}
    )
    assert torch.allclose(own.model.layer.weight, usual.model.weight, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Scored, r"for a module that computes its own loss pass laconic.Task\(module\)"),
        (lambda: laconic.Task(nn.Linear(4, 2)), r"the module computes no loss: pass laconic.Task\(module, loss\)"),
        (
            lambda: laconic.Task(Scored(), lambda module, batch: module(*batch)),
            "loss must return a tensor; it returned dict; return its loss",
        ),
    ],
)
def test_a_loss_in_the_wrong_place_says_what_to_write(model, said):
    with pytest.raises(ConfigError, match=said):
        laconic.simulate("fed_avg", model, [(np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1]))], rounds=1)


def test_labels_are_not_shifted_twice():
    with pytest.raises(ConfigError, match=r"already shifted, .* pass the module without a Task"):
        laconic.simulate("fed_avg", laconic.Task(gpt()), tokens().remove_columns("label"), rounds=1)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, right, left):
        return {"logits": self.layer(torch.cat([left, right], 1))}


def test_two_inputs_by_name_and_a_dict_of_logits():
    generator = np.random.default_rng(0)
    clients = [
        ({"left": generator.normal(size=(9, 1)), "right": generator.normal(size=(9, 2))}, generator.integers(0, 2, 9))
        for _ in range(3)
    ]
    data = from_arrays(clients, test=clients[0])
    assert data.input_names == ("left", "right") and [part.shape[1:] for part in data.batch(1, np.arange(4))] == [
        (1,),
        (2,),
        (),
    ]
    module = Two()
    result = laconic.simulate("fed_avg", module, clients, rounds=2)
    assert result.history and not module._forward_pre_hooks, "the user's module is not changed"
    part = part_of(data, [2])
    assert torch.equal(part.batch(2, np.array([1]))[1], data.batch(2, np.array([1]))[1])
    changed = [(clients[0][0] | {"right": clients[0][0]["right"] + 1}, clients[0][1]), *clients[1:]]
    assert from_arrays(changed).fingerprint() != from_arrays(clients).fingerprint()


def test_an_output_without_logits_is_refused():
    class Odd(nn.Module):
        def forward(self, inputs):
            return [inputs]

    task = classification(Odd())
    with pytest.raises(ConfigError, match="model returns list: a tensor, or an object or dict with logits, is allowed"):
        task.check((torch.zeros(2, 3), torch.tensor([0, 1])))


class OwnLoss(nn.Module):
    """A module that computes its own loss, without targets of -100, and returns it with its logits."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, outputs)

    def forward(self, inputs, labels=None):
        logits = self.layer(inputs)
        if labels is None:
            return {"logits": logits}
        squared = self.layer.out_features == 1
        fits = nn.functional.mse_loss if squared else nn.functional.cross_entropy
        given = (logits.flatten(), labels.float()) if squared else (logits.flatten(0, -2), labels.flatten())
        return {"logits": logits, "loss": fits(*given)}


def test_metrics_of_a_modules_own_loss_leave_out_padding():
    pytest.importorskip("torchmetrics")
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(12, 5, 4, generator=generator), torch.randint(0, 3, (12, 5), generator=generator)
    labels[:, 3:] = -100
    data = from_arrays([(inputs, labels)], test=(inputs, labels), kind="per_position")
    module = OwnLoss(3)
    right = {"right": lambda outputs, targets: (outputs.argmax(-1) == targets).float().mean()}
    rounds = {"rounds": 1, "threads": 1, "metrics": right}
    own = laconic.simulate("fed_avg", laconic.Task(module), data, **rounds)
    usual = laconic.simulate("fed_avg", module, data, **rounds | {"numerics": {"strategy": "loop"}})
    assert own.metrics == pytest.approx({name: usual.metrics[name] for name in own.metrics}, rel=1e-5)
    assert own.metrics["right"] == pytest.approx(usual.accuracy)
    by_name = [
        laconic.simulate("fed_avg", model, data, **rounds | {"metrics": "f1"})
        for model in (laconic.Task(module), module)
    ]
    assert by_name[0].metrics["f1"] == pytest.approx(by_name[1].metrics["f1"], rel=1e-5)


def test_a_module_with_its_own_loss_and_too_few_outputs_is_refused_before_the_run():
    clients = [(np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1])), (np.eye(4, dtype=np.float32), np.array([2] * 4))]
    with pytest.raises(ConfigError, match="model has 2 outputs, but the labels go from 0 to 2"):
        laconic.simulate("fed_avg", laconic.Task(OwnLoss(2)), clients, rounds=1)
    squared = laconic.simulate("fed_avg", laconic.Task(OwnLoss(1)), clients, rounds=1)
    assert squared.loss > 0, "one output is a regression on the numbers of the classes, as in Hugging Face's models"


class Contrastive(nn.Module):
    """A module whose own loss only asks which labels are equal. Its outputs are no logits of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs, labels=None):
        outputs = self.layer(inputs)
        if labels is None:
            return outputs
        equal = (labels[:, None] == labels).float()
        return {"loss": nn.functional.binary_cross_entropy_with_logits(outputs @ outputs.T, equal)}


def test_outputs_that_are_no_logits_are_not_counted():
    clients = [(np.eye(4, dtype=np.float32), np.array([0, 1, 2, 3]))]
    contrastive = laconic.simulate("fed_avg", laconic.Task(Contrastive()), clients, rounds=1, threads=1)
    assert contrastive.loss > 0
    right = {"right": lambda outputs, targets: (outputs == targets).float().mean()}
    classes = laconic.Task(
        OwnLoss(4), metrics=right, predict=lambda module, batch: (module(batch[0])["logits"].argmax(-1), batch[-1])
    )
    test = {"clients": clients, "test": clients[0]}
    assert 0 <= laconic.simulate("fed_avg", classes, test, rounds=1, threads=1).metrics["right"] <= 1
