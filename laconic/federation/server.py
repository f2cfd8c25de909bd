"""The server's state between rounds: the model, the states of the algorithm's parts, and the table of clients."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import torch
from torch import Tensor

from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import LOST
from laconic.algorithms.methods.exchange import BASE, BUFFERS, Exchange
from laconic.algorithms.methods.received import Aggregate, Received
from laconic.compression import encode_dense
from laconic.compression.packet import Body
from laconic.core.errors import ConfigError
from laconic.core.layout import Layout
from laconic.core.part import State, check_state
from laconic.core.randomness import Draw, Randomness
from laconic.core.state_dict import joined, section
from laconic.core.subspace import Subspace
from laconic.data.federated import ClientData, sizes_of
from laconic.federation.aggregation import RunningMean
from laconic.federation.blocklist import Blocklist
from laconic.federation.client_links import ClientLinkState, DiskClientLinkState
from laconic.federation.client_table import ClientTable
from laconic.federation.defenses import CoordinateMean, NoisyMean, resolve_defenses
from laconic.federation.direction import DirectionFilter
from laconic.federation.policy import ReplyPolicy
from laconic.federation.privacy import check_noise
from laconic.federation.sampling import limited, participants
from laconic.federation.settings import AnySampling, Defenses, Weighting, share
from laconic.federation.update_norms import UpdateNormFilter


class Server:
    """The state that persists between rounds. `laconic.federation.round.Round` has the state of one round."""

    model: Tensor
    """Every round makes a new tensor: clients, bodies and states may share the memory of this one."""
    averages: tuple[Tensor, Tensor]
    """The moving averages of model and buffers, which are evaluated and saved."""
    method_state: State
    optimizer_state: State
    downlink_state: State
    norms: UpdateNormFilter
    directions: DirectionFilter

    def __init__(
        self,
        algorithm: Algorithm,
        layout: Layout,
        model: Tensor,
        buffers: Tensor,
        data: ClientData,
        randomness: Randomness,
        *,
        participants: int,
        sampling: AnySampling = "uniform",
        weighting: Weighting = "uniform",
        defenses: Defenses | None = None,
        send_buffers: bool = True,
        links: ClientLinkState | DiskClientLinkState | None = None,
        policy: ReplyPolicy | None = None,
        quorum: float | None = None,
        weight_limit: float | None = None,
    ) -> None:
        self.algorithm, self.layout, self.data, self.randomness = algorithm, layout, data, randomness
        if isinstance(layout, Subspace) and layout.every is not None and algorithm.optimizer.average != 1:
            raise ConfigError(
                f"subspace_every = {layout.every}: not with optimizer.average = {algorithm.optimizer.average:g}, since "
                "models of several subspaces have no exact average; set it to 1"
            )
        self._first_layout = layout
        self._last_models: list[Tensor] = []
        """The last models of the subspaces before, as many as take less space than the whole model."""
        self.count, self.sampling, self.weighting = participants, sampling, weighting
        self.send_buffers = send_buffers and layout.buffer_size > 0
        self.defenses = resolve_defenses(
            defenses or Defenses(), algorithm, layout, participants, weighting, self.send_buffers
        )
        if self.defenses.noise:
            fixed_number = sampling == "uniform" and participants < len(data)
            check_noise(self.defenses, algorithm, sampling, weighting, fixed_number=fixed_number, quorum=quorum)
        self.policy = policy or ReplyPolicy(Blocklist())
        self.quorum = quorum
        """An exchange ends when this share of its clients has sent valid replies; None waits for all."""
        self.weight_limit = weight_limit
        """The largest weight of a client, as a multiple of the median client's. None: nodes are trusted with their sizes."""
        self.secret = randomness
        """Draws the participants and the privacy noise. With differential privacy clients must not know its seed."""
        self.direction_secret = randomness
        """Draws the signs of the direction filter. Clients that know them can deceive the filter."""
        self.incarnation = 0
        """The number of restarts of a deployed server. It identifies replies to rounds that a crash rolled back."""
        self.rounds_are_durable = True
        """Whether a finished round counts as durable. If not, call `acknowledge` after each checkpoint."""
        self.round = 0
        self.attempt = 0
        """How often the current round was repeated because nobody answered."""
        self.buffers = buffers.clone()
        self._start(model)
        self.clients = ClientTable(layout, len(data), links)
        self._blocked: int | None = None
        """The number of blocked clients whose part in the shared states is gone. None before the first round."""
        self._sizes: tuple[int, np.ndarray] | None = None
        self._weights: tuple[np.ndarray, np.ndarray] | None = None

    def _start(self, model: Tensor) -> None:
        """Start all states from a model."""
        algorithm = self.algorithm
        self.model = model
        self.averages = self.model, self.buffers
        method, optimizer = algorithm.method, algorithm.optimizer
        self.method_state = check_state(method.init(model), f"method '{method.name}': `init`")
        self.optimizer_state = check_state(optimizer.init(model), f"optimizer '{optimizer.name}': `init`")
        self.downlink_state = algorithm.downlink.init(model)
        self.norms = UpdateNormFilter(self.defenses)
        self.directions = DirectionFilter(self.direction_secret)

    def hide(self, secret: Randomness, *, participants_and_noise: bool) -> None:
        """Draw from a secret what clients must not know: the direction filter's signs, and with privacy more."""
        self.direction_secret, self.directions.randomness = secret, secret
        if participants_and_noise:
            self.secret = secret

    def _redraw(self) -> None:
        """Draw another subspace around the current model. Memories, mirrors, moments and control variates are reset."""
        assert isinstance(self.layout, Subspace)
        most = (self.layout.full.size - 1) // self.layout.size
        self._last_models = [*self._last_models, self.model][-most:]
        self.layout = self.layout.for_round(self.round).around(self.layout.expand(self.model))
        self._start(self.layout.start(self.model))
        self.clients.renew()

    def base_for(self, client: int) -> dict[str, Body]:
        """What a client does not know of the model at which the current subspace was drawn."""
        known = self.clients.period(client)
        missed = self.layout.period - known
        if not self._last_models or not missed:
            return {}
        assert isinstance(self.layout, Subspace)
        lost = known == LOST or missed > len(self._last_models)
        return {BASE: encode_dense(self.layout.weights if lost else torch.cat(self._last_models[-missed:]))}

    @property
    def blocklist(self) -> Blocklist:
        """The violations and blocked clients."""
        return self.policy.blocklist

    def draw_participants(self) -> list[int]:
        """Sample the participants of the current round."""
        draw = (self.round, self.secret, self.client_weights, self.attempt)
        return participants(self.sampling, len(self.data), self.count, *draw)

    def client_sizes(self) -> np.ndarray:
        """The number of examples of each client, cached per revision of the data."""
        revision = getattr(self.data, "revision", 0)
        if self._sizes is None or self._sizes[0] != revision:
            self._sizes = revision, sizes_of(self.data)
        return self._sizes[1]

    def client_weights(self) -> np.ndarray:
        """The weight of each client with `weighting = "size"` or `sampling = "weighted"`."""
        sizes = self.client_sizes()
        if self._weights is None or self._weights[0] is not sizes:
            self._weights = sizes, limited(sizes, self.weight_limit)
        return self._weights[1]

    def weight(self, client: int) -> float:
        """The weight of a client's update."""
        if self.weighting == "uniform":
            return 1.0
        return float(self.data.size(client) if self.weight_limit is None else self.client_weights()[client])

    def limited_size(self, client: int) -> float | None:
        """The number of examples with which a client counts in the metrics; None if what it reports is believed."""
        return None if self.weight_limit is None else float(self.client_weights()[client])

    def new_aggregate(self, stream: str) -> Aggregate:
        """An empty accumulator for the vectors of a stream in this round."""
        size = self.layout.buffer_size if stream == BUFFERS else self.layout.size
        like = (size, self.layout.dtype, self.model.device)
        trim = share(self.defenses.aggregate)
        if trim is not None:
            return CoordinateMean(*like, trim)
        if self.defenses.noise:
            assert isinstance(self.defenses.clip, float)
            noise = self.secret.numpy(Draw.PRIVACY_NOISE, self.round)
            return NoisyMean(*like, noise, self.defenses.noise * self.defenses.clip, self.count)
        return RunningMean(*like)

    def begin_round(self) -> None:
        """Acknowledge the previous rounds if they are durable."""
        if self.rounds_are_durable:
            self.acknowledge()
        if self.defenses.refuse == "auto":
            self.directions.begin(self.model)
        if self._blocked is None:
            self._blocked = self.blocklist.blocked_count()

    def acknowledge(self) -> None:
        """Mark all updates used so far as durable, so that instructions acknowledge them."""
        self.clients.acknowledge()

    def gather(self, exchange: Exchange, received: Received, context: RoundContext) -> None:
        """Update the method's state with the vectors of an exchange."""
        method = self.algorithm.method
        state = method.gather(exchange, self.method_state, received, context)
        self.method_state = check_state(state, f"method '{method.name}': `gather`")

    def advance(self, received: Received) -> None:
        """Update the model with the received vectors, and go to the next round."""
        algorithm, before = self.algorithm, self.model
        update, statistics = algorithm.method.update(received, self.method_state), received.mean(BUFFERS)
        received.clear()
        if update is not None:
            stepped = algorithm.optimizer.step(update, self.optimizer_state)
            if not isinstance(stepped, tuple):
                raise ConfigError(
                    f"optimizer '{algorithm.optimizer.name}': `step` must return the step and the new state"
                )
            step, state = stepped
            self.optimizer_state = check_state(state, f"optimizer '{algorithm.optimizer.name}': `step`")
            if step.shape != self.model.shape:
                shapes = f"shape {list(step.shape)}, but the model has {list(self.model.shape)}"
                raise ConfigError(f"optimizer '{algorithm.optimizer.name}': `step` returned a step of {shapes}")
            del update, stepped
            step = algorithm.optimizer.scheduled(step, self.round, self._path())
            population = len(self.data)
            context = RoundContext(self.layout, self.randomness, self.round, invited=self.count, population=population)
            self.model, self.downlink_state = algorithm.downlink.advance(self.model, step, self.downlink_state, context)
            if statistics is not None:
                self.buffers = statistics
        self.directions.end(self.model)
        self.method_state = algorithm.method.close(self.method_state, before)
        self._restart_shared_states()
        self.round += 1
        self.attempt = 0
        if self.layout.starts(self.round):
            self._redraw()
        weight = algorithm.optimizer.average_weight(self.round)
        model, buffers = self.averages
        self.averages = self.model, self.buffers
        if weight != 1:
            self.averages = model.lerp(self.model, weight), buffers.lerp(self.buffers, weight)

    def _path(self) -> float | None:
        """The sum of the local rates of a client of median size in this round, if the optimizer needs it.

        Of two middle sizes the smaller one counts: of two clients, one could claim any size.
        """
        if not self.algorithm.optimizer.needs_path:
            return None
        # The median: a node may claim any number of examples, and must not lengthen the steps of all.
        return self.algorithm.method.path(self.round, int(np.quantile(self.client_sizes(), 0.5, method="lower")))

    def _restart_shared_states(self) -> None:
        """Set the states that clients share to 0 on both sides if a client was blocked.

        The server knows only their mean, which would contain what the blocked client sent before for the rest of the run.
        """
        blocked, shared = self.blocklist.blocked_count(), self.algorithm.method.shared_states()
        if shared and blocked > (self._blocked or 0):
            self.method_state |= {state.name: torch.zeros_like(self.model) for state in shared}
            self.clients.restart()
        self._blocked = blocked

    def sha256(self) -> str:
        """The SHA-256 hash of the model and the buffers."""
        digest = sha256()
        # In a later subspace z alone does not determine the model.
        model = self.layout.expand(self.model) if self.layout.period else self.model
        for vector in (model, self.buffers):
            digest.update(vector.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def state_dict(self) -> State:
        """Everything that the next round depends on, as a flat dict of tensors."""
        result: State = {"round": torch.tensor(self.round), "model": self.model, "buffers": self.buffers}
        if self.averages[0] is not self.model:
            result |= {"average/model": self.averages[0], "average/buffers": self.averages[1]}
        if isinstance(self.layout, Subspace) and self._last_models:
            result |= {"subspace/weights": self.layout.weights, "subspace/last": torch.stack(self._last_models)}
        parts = {
            "optimizer": self.optimizer_state,
            "downlink": self.downlink_state,
            "method": self.method_state,
            "norms": self.norms.state_dict(),
            "directions": self.directions.state_dict(),
            "clients": self.clients.state_dict(),
        }
        return result | joined(parts)

    def load_state_dict(self, state: State) -> None:
        """Restore a `state_dict`."""

        def on_device(name: str) -> State:
            return {key: value.to(self.model.device) for key, value in section(state, name).items()}

        self.optimizer_state, self.downlink_state = on_device("optimizer"), on_device("downlink")
        self.method_state = on_device("method")
        self.round = int(state["round"])
        self.model, self.buffers = state["model"].to(self.model.device), state["buffers"].to(self.model.device)
        subspace, self.layout, self._last_models = on_device("subspace"), self._first_layout, []
        if subspace:
            assert isinstance(self._first_layout, Subspace)
            self._last_models = [*subspace["last"]]
            self.layout = self._first_layout.for_round(self.round).around(subspace["weights"])
        averages = on_device("average")
        self.averages = averages.get("model", self.model), averages.get("buffers", self.buffers)
        self.norms.load_state_dict(section(state, "norms"))
        self.directions.load_state_dict(section(state, "directions"))
        self.clients.load_state_dict(section(state, "clients"))
