"""Downlinks: the cheapest form is sent and gives the server's model, thresholds skip, and hostile catch-ups are refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import LOST, BroadcastModel, ClientModelVersion, Downlink, LostState
from laconic.algorithms.downlinks.broadcast import Broadcast
from laconic.algorithms.downlinks.catch_up import CatchUpForm, frame, read
from laconic.algorithms.downlinks.estimated import Estimated
from laconic.algorithms.downlinks.mirrored import Mirrored
from laconic.compression import Codec, DensePayload, GroupedCompressor, decode_body, encode_dense, encode_sparse
from laconic.compression.body import BodyWriter
from laconic.compression.entropy import SymbolRun
from laconic.compression.packet import Body
from laconic.core.errors import PacketError
from laconic.core.layout import Layout
from laconic.core.randomness import Randomness
from tests.compression.test_compressors import draws, layout_of, normal

LAYOUT = layout_of(150, 0, 50, dtype=torch.float32)


def context(round: int, layout: Layout = LAYOUT) -> RoundContext:
    return RoundContext(layout, Randomness(3), round)


class Broadcasting:
    """A broadcasting server and all models that it has had."""

    def __init__(self, spelling: str, same_places: bool, rounds: int) -> None:
        self.downlink = Broadcast(spelling)
        self.models, self.steps = [normal(LAYOUT)], []
        self.state = self.downlink.init(self.models[0])
        weight = torch.zeros(LAYOUT.size)
        weight[:10] = 1
        for round in range(rounds):
            step = normal(LAYOUT, round + 1) * (weight if same_places else 1)
            model, self.state = self.downlink.advance(self.models[-1], step, self.state, context(round))
            self.models.append(model)
            self.steps.append(Body.from_tensor(self.state[f"step/{round + 1}"]))
            assert self.logged() <= 4 * LAYOUT.size
        self.publication = BroadcastModel(self.models[-1], self.state, LAYOUT)

    def logged(self) -> int:
        """Bytes of the steps that the server still has."""
        return sum(value.numel() for name, value in self.state.items() if name.startswith("step/"))

    def forms(self, since: int) -> dict[CatchUpForm, Body]:
        """All that the server can make, made here: steps that together are longer than the model are not kept."""
        now, model = len(self.steps), self.models[-1]
        missed = self.steps[since:]
        forms = {CatchUpForm.WHOLE: frame(0, now, CatchUpForm.WHOLE, [encode_dense(model)])}
        if sum(1 + len(body.data) for body in missed) <= 4 * LAYOUT.size:
            forms[CatchUpForm.STEPS] = frame(since, now, CatchUpForm.STEPS, missed)
        changed = [decode_body(body, LAYOUT).positions for body in missed]
        if changed and all(positions is not None for positions in changed):
            union = torch.from_numpy(np.unique(np.concatenate([positions.numpy() for positions in changed])))
            forms[CatchUpForm.VALUES] = frame(
                since, now, CatchUpForm.VALUES, [encode_sparse(union, model[union], LAYOUT)]
            )
        return forms


@pytest.mark.parametrize(
    ("spelling", "same_places", "expected"),
    [
        ("top_k:0.05", True, {CatchUpForm.STEPS, CatchUpForm.VALUES}),
        ("top_k:0.05", False, {CatchUpForm.STEPS, CatchUpForm.VALUES}),
        ("top_k:0.3", False, {CatchUpForm.STEPS, CatchUpForm.VALUES, CatchUpForm.WHOLE}),
        ("sign", False, {CatchUpForm.STEPS}),
    ],
)
def test_broadcast_sends_the_cheapest_form(spelling: str, same_places: bool, expected: set[CatchUpForm]) -> None:
    rounds = 20
    server = Broadcasting(spelling, same_places, rounds)
    seen = set()
    for since in range(rounds + 1):
        body = server.downlink.send(server.publication, ClientModelVersion(since, {}), context(rounds))
        forms = server.forms(since)
        form = read(body, LAYOUT)[2]
        assert len(body.data) == min(len(each.data) for each in forms.values())
        assert bytes(body.data) == bytes(forms[form].data)
        seen.add(form)
        have = {"model": server.models[since], "version": torch.tensor(since)}
        model, state = server.downlink.receive(body, have, server.models[0], LAYOUT, lost=False)
        assert torch.equal(model, server.models[-1]), "to the bit"
        assert int(state["version"]) == rounds
    assert seen == expected
    lost = server.downlink.send(server.publication, ClientModelVersion(LOST, {}), context(rounds))
    assert read(lost, LAYOUT)[2] == CatchUpForm.WHOLE
    assert torch.equal(server.downlink.receive(lost, {}, server.models[0], LAYOUT, lost=True)[0], server.models[-1])


@pytest.mark.parametrize("literal", [False, True])
def test_mirrored_skips_what_is_below_its_threshold(literal: bool) -> None:
    initial = normal(LAYOUT)
    for share, skips in ((0.09, True), (0.11, False)):
        downlink = Mirrored("dense", threshold=0.1, literal=literal)
        change = normal(LAYOUT, 1)
        change *= share * initial.norm() / change.norm()
        publication, held = BroadcastModel(initial + change, downlink.init(initial), LAYOUT), ClientModelVersion(0, {})
        body = downlink.send(publication, held, context(0))
        assert (body.codec == Codec.SKIP) is skips
        assert len(body.data) == (0 if skips else 4 * LAYOUT.size)
        assert downlink.replace(threshold=None).send(publication, held, context(0)).codec != Codec.SKIP
        model, _ = downlink.receive(body, {}, initial, LAYOUT, lost=False)
        assert torch.equal(model, downlink.confirmed(publication, held, body)["mirror"])
        assert torch.equal(model, initial) is skips


def test_mirrored_tells_what_was_skipped_later() -> None:
    """Small steps are not lost: they add up until one is sent."""
    downlink, initial = Mirrored("dense", threshold=0.1), normal(LAYOUT)
    step, model, peer, sent = initial * 0.03, initial, {}, []
    for round in range(9):
        model = model + step
        publication, held = BroadcastModel(model, downlink.init(initial), LAYOUT), ClientModelVersion(0, peer)
        body = downlink.send(publication, held, context(round))
        peer = downlink.confirmed(publication, held, body)
        sent.append(body.codec != Codec.SKIP)
    assert sent == [False, False, False, True] * 2 + [False]


SERVER = Broadcasting("top_k:0.05", False, 6)
PAIR = frame(0, 3, CatchUpForm.WHOLE, [encode_dense(SERVER.models[3]), encode_dense(SERVER.models[2])])
HONEST = [*SERVER.forms(1).values(), *SERVER.forms(3).values(), *SERVER.forms(6).values(), PAIR]
RECEIVERS: list[Downlink] = [
    SERVER.downlink,
    Mirrored("sign"),
    Mirrored("sign", literal=True),
    Estimated("sign"),
]


def take(downlink: Downlink, body: Body, state: dict[str, Tensor]) -> bool:
    """PacketError, a lost state that is said to be lost, or a finite model."""
    try:
        model, _ = downlink.receive(body, state, SERVER.models[0], LAYOUT, lost=False)
    except PacketError as error:
        assert error.reason and "\n" not in str(error)
        return False
    except LostState:
        return False
    assert model.shape == (LAYOUT.size,) and bool(torch.isfinite(model).all())
    return True


def test_hostile_catch_ups() -> None:
    generator, accepted, tried = draws(6), 0, 0
    for _ in range(1500):
        honest = HONEST[generator.integers(len(HONEST))]
        data = bytearray(honest.data)
        kind = generator.integers(5)
        if kind == 0:
            for _ in range(int(generator.integers(1, 4))):
                data[generator.integers(len(data))] = int(generator.integers(256))
        elif kind == 1:
            data = data[: generator.integers(len(data))]
        elif kind == 2:
            data[generator.integers(min(20, len(data)))] = int(generator.choice([0, 1, 2, 3, 127, 128, 255]))
        elif kind == 3:  # the beginning of one, the end of another
            other = HONEST[generator.integers(len(HONEST))].data
            data = data[: generator.integers(len(data) + 1)] + bytes(other[generator.integers(len(other) + 1) :])
        else:
            data += generator.bytes(int(generator.integers(1, 40)))
        since = int.from_bytes(data[:4].ljust(4, b"\0"), "little")
        for downlink in RECEIVERS:
            state = {"model": SERVER.models[1], "version": torch.tensor(since)}
            accepted += take(downlink, Body(Codec.CATCH_UP, bytes(data)), state)
            tried += 1
    assert 0 < accepted < tried  # some changes only change values


def test_catch_ups_of_a_wrong_form_or_count_or_length() -> None:
    step, whole = SERVER.steps[0], encode_dense(SERVER.models[0])
    for since, now, form, items, reason in (
        (0, 0, 3, [whole], "form"),
        (2, 1, CatchUpForm.WHOLE, [whole], "form"),
        (0, 2, CatchUpForm.STEPS, [step], "form"),
        (0, 1, CatchUpForm.STEPS, [step, step], "form"),
        (0, 2, CatchUpForm.VALUES, [step, step], "form"),
        (0, 2, CatchUpForm.WHOLE, [], "form"),
        (0, 1, CatchUpForm.WHOLE, [Body(Codec.SKIP)], "codec"),
        (0, 1, CatchUpForm.STEPS, [frame(0, 1, CatchUpForm.STEPS, [step])], "codec"),
        (0, 1, CatchUpForm.WHOLE, [Body(whole.codec, bytes(whole.data) + b"\0")], "length"),
        (0, 200, CatchUpForm.STEPS, [Body(Codec.SKIP)] * 200, "length"),
    ):
        with pytest.raises(PacketError) as caught:
            SERVER.downlink.receive(frame(since, now, form, items), {}, SERVER.models[0], LAYOUT, lost=False)
        assert caught.value.reason == reason, (since, now, form)


def test_an_estimated_step_comes_as_changes_or_whole_with_its_model() -> None:
    downlink = Estimated("top_k:0.05")
    model, rounds = normal(LAYOUT), 6
    state, clients = downlink.init(model), {}
    initial = model.clone()
    for round in range(rounds):
        publication = BroadcastModel(model, state, LAYOUT)
        # One client is there in every round, one in the last alone, and one has lost its state before that.
        for name in ("always", "late", "lost") if round == rounds - 1 else ("always",):
            own = clients.get(name, {})
            version = LOST if name == "lost" else int(own["version"]) if own else 0
            body = downlink.send(publication, ClientModelVersion(version, {}), context(round))
            form = CatchUpForm.WHOLE if name == "lost" else CatchUpForm.STEPS
            assert read(body, LAYOUT, wholes=2)[2] == form
            received, clients[name] = downlink.receive(body, own, initial, LAYOUT, lost=False)
            assert torch.equal(received, model)
            assert torch.equal(clients[name]["estimate"], state["estimate"])
            many = 64 * LAYOUT.size if form == CatchUpForm.WHOLE else (round - version) * 64 * 10
            assert downlink.paper_bits(body, LAYOUT) == many
        model, state = downlink.advance(model, normal(LAYOUT, round + 1), state, context(round))
    for wrong in (CatchUpForm.WHOLE, CatchUpForm.VALUES):  # the model without its estimate, and values
        with pytest.raises(PacketError) as caught:
            downlink.receive(frame(0, 1, wrong, [encode_dense(model)]), {}, initial, LAYOUT, lost=False)
        assert caught.value.reason == "form"
    with pytest.raises(LostState):
        downlink.receive(frame(3, 4, CatchUpForm.STEPS, [SERVER.steps[0]]), {}, initial, LAYOUT, lost=False)


@pytest.mark.parametrize("literal", [False, True])
def test_a_mirrored_client_takes_a_catch_up_only_whole(literal: bool) -> None:
    downlink = Mirrored("sign", literal=literal)
    for body in (
        frame(0, 0, CatchUpForm.STEPS, []),
        frame(0, 1, CatchUpForm.STEPS, [SERVER.steps[0]]),
        frame(0, 1, CatchUpForm.VALUES, [SERVER.steps[0]]),
        frame(0, 1, CatchUpForm.ACCELERATED, [SERVER.steps[0]]),
    ):
        if read(body, LAYOUT)[2] == CatchUpForm.ACCELERATED:
            # A client that has lost its state first asks for the whole model.
            with pytest.raises(LostState):
                downlink.receive(body, {}, SERVER.models[0], LAYOUT, lost=True)
            with pytest.raises(PacketError):
                downlink.receive(body, {}, SERVER.models[0], LAYOUT, lost=False)
            with pytest.raises(PacketError):
                SERVER.downlink.receive(body, {}, SERVER.models[0], LAYOUT, lost=False)
            continue
        for lost in (False, True):
            with pytest.raises(PacketError) as caught:
                downlink.receive(body, {}, SERVER.models[0], LAYOUT, lost)
            assert caught.value.reason == "form"


def test_an_accelerated_mirror_adds_the_last_two_differences() -> None:
    layout = layout_of(4, dtype=torch.float32)
    downlink = Mirrored("top_k:0.25", threshold=0.5, aggregation="accelerated")
    model = torch.tensor([8.0, 0.0, 0.0, 0.0])
    state, peer, sent = downlink.init(model), {}, {}
    received = []
    for number, second in enumerate((5.0, 1.0, 2.0)):
        model = torch.tensor([8.0, 4.0 + second, 0.0, 0.0])
        broadcast, client = BroadcastModel(model, state, layout), ClientModelVersion(0, peer)
        body = downlink.send(broadcast, client, RoundContext(layout, Randomness(3), number))
        peer = downlink.confirmed(broadcast, client, body)
        got, sent = downlink.receive(body, sent, state["initial"], layout, lost=False)
        assert torch.equal(got, peer["mirror"])
        assert downlink.paper_bits(body, layout) == 64
        received.append((body.codec == Codec.CATCH_UP, got.tolist()))
    # 9 is more than half of ||(8, 0)||. 4 is not more than half of ||(8, 9)||: 9 - 4 is added. 8 is not more than half of
    # ||(8, 14)|| = 16.1: -4 - 8 is added.
    assert received == [(False, [8, 9, 0, 0]), (True, [8, 14, 0, 0]), (True, [8, 2, 0, 0])]


def test_a_mirror_without_a_threshold_accelerates_nothing() -> None:
    models = [torch.tensor([8.0, 4.0 + second, 0.0, 0.0]) for second in (5.0, 1.0, 2.0)]
    layout, kept = layout_of(4, dtype=torch.float32), []
    for downlink in (Mirrored("top_k:0.25"), Mirrored("top_k:0.25", aggregation="accelerated")):
        state, peer = downlink.init(models[0]), {}
        for number, model in enumerate(models):
            broadcast, client = BroadcastModel(model, state, layout), ClientModelVersion(0, peer)
            body = downlink.send(broadcast, client, RoundContext(layout, Randomness(3), number))
            peer = downlink.confirmed(broadcast, client, body)
            kept.append((body.to_tensor().tolist(), peer["mirror"].tolist(), [*peer]))
    assert kept[:3] == kept[3:] and kept[-1][2] == ["mirror"]


@pytest.mark.parametrize("form", [Codec.STEPS, Codec.GRID])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_levels_at_their_limits_decode_to_finite_numbers(form: Codec, dtype: torch.dtype) -> None:
    """The lowest level, the largest symbol and all low bits at once reach about 2^17 steps."""
    layout = layout_of(9, dtype=dtype)
    most = float(torch.finfo(dtype).max)
    for power, sign, lowest in itertools.product(np.arange(0, 20, 0.25), (1.0, -1.0), (-(2**16), 2**16)):
        writer = BodyWriter(layout)
        writer.values(np.array([sign * most / 2**power]))
        if form is Codec.GRID:
            writer.values(np.array([sign * most]))
        symbols = np.array([0, 256] * 4 + [256], dtype=np.uint32)
        writer.symbols.put(SymbolRun.expecting(symbols, np.ones(257)))
        for field in (2 * lowest if lowest >= 0 else -2 * lowest - 1, 2 * 8, 256):
            writer.number(field)
        writer.put(b"\xff" * 9)
        found = decode_body(writer.body(form), layout).dense()
        assert bool(torch.isfinite(found).all())
        scale = sign * (most / 2**power)
        levels = symbols.astype(np.longdouble) * 256 + 255 + lowest
        exact = np.clip(levels * scale + (sign * most if form is Codec.GRID else 0), -most, most)
        # Where the product overflows before the offset is added, the clip is all that can be asked.
        if form is Codec.STEPS:
            np.testing.assert_allclose(found.numpy().astype(np.longdouble) / most, exact / most, rtol=1e-6, atol=0)


@pytest.mark.parametrize("spelling", ["qsgd:4", "random_k:1e-9", "top_k:1e-9"])
def test_many_tiny_steps_cannot_keep_a_client_busy(spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a few bytes can stand for a whole vector of zeros, so their number must have a bound of its own."""
    layout = layout_of(20_000, dtype=torch.float32)
    step = GroupedCompressor.parse(spelling).encode(torch.zeros(layout.size), layout, draws())
    number = 4 * layout.size // (5 + len(step.data))
    decoded = 0

    def counted(body: Body, layout: Layout) -> DensePayload:
        nonlocal decoded
        decoded += 1
        return DensePayload(torch.zeros(layout.size))

    monkeypatch.setattr("laconic.algorithms.downlinks.broadcast.decode_body", counted)
    with pytest.raises(PacketError):
        body = frame(0, number, CatchUpForm.STEPS, [step] * number)
        Broadcast("sign").receive(body, {}, torch.zeros(layout.size), layout, lost=False)
    assert decoded <= 1000 < number
