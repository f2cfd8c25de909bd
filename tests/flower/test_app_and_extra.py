"""The app that `laconic new-app` writes, and a core that needs no Flower."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from laconic.cli.new_app import write_app
from laconic.core.errors import ConfigError
from tests.documentation.pages import ROOT


def test_the_core_and_the_command_line_do_not_import_flower():
    program = "import sys, laconic.cli.training; print([name for name in sys.modules if name.startswith('flwr')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_app_is_one_that_flower_accepts(tmp_path):
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    from flwr.cli.config_utils import load_and_validate

    write_app(tmp_path / "my-app", nodes=5)
    config, warnings = load_and_validate(tmp_path / "my-app" / "pyproject.toml", check_module=True)
    assert not warnings
    assert config["tool"]["flwr"]["app"]["components"]["serverapp"] == "my_app.server_app:app"
    assert "clients=5" in (tmp_path / "my-app" / "my_app" / "server_app.py").read_text()


def test_nothing_is_overwritten_and_no_package_is_fetched_by_our_name(tmp_path):
    write_app(tmp_path / "app")
    with pytest.raises(ConfigError, match="exists already"):
        write_app(tmp_path / "app")
    with pytest.raises(ConfigError, match="lowercase letters"):
        write_app(tmp_path / "Äpp")
    assert tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["project"]["dependencies"] == []


def test_the_readme_has_commands_that_can_be_copied(tmp_path):
    write_app(tmp_path / "app", nodes=5)
    text = (tmp_path / "app" / "README.md").read_text()
    assert "{" not in text
    assert 'FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 flwr run . --stream --federation-config "num-sup' in text
    assert "local_keys keys --nodes 5 --host" in text
    for flag in ("--ssl-keyfile", "--fleet-address", "--auth-supernode-private-key", "supernode register", "--apps"):
        assert flag in text
    # A command that goes on in the next line says so.
    assert "superlink.sqlite \\\n    --ssl-ca-certfile" in text


def test_flower_accepts_the_changes_of_settings_in_the_guide(tmp_path):
    """Flower refuses a setting in `--run-config` that the app does not have, and a new setting in the app is a new hash."""
    write_app(tmp_path / "app")
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    pages = (ROOT / "docs/deploy.md").read_text(), (tmp_path / "app" / "README.md").read_text()
    changed = {key for page in pages for key in re.findall(r"""--run-config ["']([\w-]+)=""", page)}
    assert {"rounds", "out", "from-round", "replace-nodes"} <= changed <= set(config)


def test_flower_knows_the_variable_by_which_nothing_is_fetched(monkeypatch):
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    from flwr.superlink.cli.flower_superlink import _runtime_dependency_install_default

    assert _runtime_dependency_install_default()
    monkeypatch.setenv("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
    assert not _runtime_dependency_install_default()
