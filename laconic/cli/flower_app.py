"""A small Flower app to start from: `laconic new-app NAME`."""

from __future__ import annotations

import re
from pathlib import Path

from laconic.core.errors import ConfigError

FILES = {
    "pyproject.toml": """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
description = "Federated learning with Laconic on Flower."
license = "Apache-2.0"
# Laconic is installed on every machine beforehand. Named here, Flower would fetch whatever an index has under that name.
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "laconic"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# Any setting of a run may stand here. What stands here may be changed for one run: flwr run . --run-config "rounds=50"
# Where server_app is given an algorithm, a model or data of your own instead of a name, that counts, and the name here does
# not; the run's config.toml has what was used.
[tool.flwr.app.config]
algorithm = "fed_cams:compressor=sign"
rounds = 20
eval-every = 5
seed = 0
dataset = "digits"
partition = "iid"
model = "mlp:64"
strategy = "auto"
out = "runs/{name}"
deadline = 600.0
quorum = 1.0
# Rounds between two evaluations on the nodes' own examples; 0 is never: the whole model travels for it.
client-eval-every = 0
# A machine that takes the place of another needs this once; see docs/deploy.md.
replace-nodes = false
""",
    "{package}/__init__.py": '"""Federated learning with Laconic on Flower."""\n',
    "{package}/server_app.py": '''\
"""The server: what is trained, by which algorithm, and where the run is kept."""

from laconic.flower import server_app

# The run config in pyproject.toml has the algorithm, the model and the data by name, and wins over these.
app = server_app("fed_cams:compressor=sign", "mlp:64", "digits", clients={nodes})
''',
    "{package}/client_app.py": '''\
"""A node: the same model, and data of its own.

For data of your own, give `client_app` a function instead of a name:

    def data(context):  # context.node_config is what `flower-supernode --node-config` says
        inputs, targets = ...
        return laconic.data.from_arrays([(inputs, targets)], classes=...)  # labels=[...], all of them, where they are text

For a model of your own, give both apps the same function that builds it: its weights then follow from the run's seed.
"""

from laconic.flower import client_app

app = client_app("mlp:64", "digits")
''',
    "README.md": """\
# {name}

Laconic with the extra `flower` is installed on every machine; nothing is fetched while a run goes on.

## In Flower's simulation

With Ray (`pip install 'flwr[simulation]'`), on this machine, as it stands:

```
FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 flwr run . --stream --federation-config "num-supernodes={nodes}"
```

Without that variable Flower asks a package index for the app's build tool before the first round. It holds for the SuperLink
that Flower starts for simulations and leaves running; one that is there already keeps what it was started with.

## On nodes, with TLS and keys

Keys and certificates for a trial (in production every node makes its own pair, and an authority signs the certificate):

```
python -m laconic.flower.trial_keys keys --nodes {nodes} --host superlink.example.org
```

The SuperLink:

```
python -m laconic.flower.prefork flower-superlink --host 0.0.0.0 --port 8000 --database superlink.sqlite \\
    --ssl-ca-certfile keys/ca.crt --ssl-certfile keys/superlink.crt --ssl-keyfile keys/superlink.key \\
    --enable-supernode-auth --disable-runtime-dependency-installation
```

Its name, in `~/.flwr/config.toml`, and the nodes that may join:

```
[superlink.ours]
address = "superlink.example.org:8000"
root-certificates = "/home/me/keys/ca.crt"
```

```
flwr supernode register keys/node-0.pub ours
```

Each node, with its own key and number, counted from 0:

```
python -m laconic.flower.prefork flower-supernode --superlink superlink.example.org:8000 --root-certificates keys/ca.crt \\
    --auth-supernode-private-key keys/node-0 --node-config 'partition-id=0 state="/var/lib/laconic"'
```

Train: `flwr run . ours --stream`.

A node's state is a file in the folder `state`. The server keeps the run in `runs/{name}`; started again, it goes on there.
Laconic's guide (docs/deploy.md) has the settings, and what happens when something fails.
""",
}


def write_app(folder: Path, nodes: int = 3) -> list[Path]:
    """Write the app; what is there already is left alone."""
    if folder.exists():
        raise ConfigError(f"'{folder}': exists already; choose another name")
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", folder.name):
        raise ConfigError(f"'{folder.name}': small letters, digits, - and _ are allowed")
    words = {"name": folder.name, "package": folder.name.replace("-", "_"), "nodes": nodes}
    written = []
    for name, text in FILES.items():
        path = folder / name.format(**words)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(**words))
        written.append(path)
    return written
