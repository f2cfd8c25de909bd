"""Files that are written completely or not at all, and tensors in files that notice damage."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from laconic.core.errors import ConfigError, DataError
from laconic.core.state_dict import bytes_of, checksum
from laconic.data.scales import stored_normalize

FORMAT = 4
"""The version of the checkpoint format. Files of another version are refused."""
SECRET = 0o600
"""The mode of files with client states or the secret of the noise: only their owner reads them."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn an error of the disk, such as a full one, into a message that names the file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"'{path}': {error.strerror or error}") from error


def check_regular(path: Path) -> None:
    """Refuse what is not a regular file: reading a pipe could block, and reading a device could never end."""
    if path.exists() and not path.is_file():
        raise DataError(f"'{path}' is not a regular file")


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file completely or not at all, also in a power failure. `mode` applies to a new file, less the umask."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with naming(path):
        try:
            temporary.unlink(missing_ok=True)
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def is_unfinished(path: Path) -> bool:
    """Whether the file is a leftover of a `write_atomically` that was killed."""
    return path.name.startswith(".") and path.suffix[1:].isdigit()


def save_tensors(path: Path, tensors: dict[str, Tensor], numbers: dict[str, Any], mode: int = 0o666) -> None:
    """Write tensors and plain values to one safetensors file, atomically and with a checksum."""
    contiguous: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        contiguous[name] = tensor.detach().cpu().contiguous()
        # safetensors refuses tensors that share memory, such as a state that is both committed and pending.
        address = contiguous[name].untyped_storage().data_ptr()
        if address in seen:
            contiguous[name] = contiguous[name].clone()
        seen.add(address)
    # A single metadata entry, because safetensors does not order them, and equal checkpoints must be equal files.
    header = {"format": FORMAT, "checksum": _checksum(contiguous, numbers), "plain": numbers}
    write_atomically(path, save(contiguous, {"laconic": json.dumps(header)}), mode)


def save_model(path: Path, module: nn.Module, sha256: str, round: int, normalize: object = None) -> None:
    """Write a model's state dict to a safetensors file, with its hash, its round, and what inputs were normalized by."""
    if path.suffix in (".pt", ".pth", ".bin"):
        raise ConfigError(
            f"'{path}': this writes a safetensors file; name it so, or use torch.save(result.model.state_dict(), …)"
        )
    stored = stored_normalize(normalize)
    scales = {} if stored is None else {"normalize": stored}
    save_tensors(path, module.state_dict(), {"sha256": sha256, "round": round, **scales})


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and plain values that `save_tensors` wrote. A file that has changed since is refused."""
    check_regular(path)
    try:
        with naming(path), safe_open(path, "pt") as file:
            header = json.loads(file.metadata()["laconic"])
            version = header["format"]
            if version != FORMAT:
                raise DataError(
                    f"'{path}' has checkpoint format {version}; this version of Laconic reads format {FORMAT}"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            if _checksum(tensors, header["plain"]) != header["checksum"]:
                raise DataError(f"'{path}' is damaged: its content has changed")
            return tensors, header["plain"]
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"'{path}' is damaged: {error}") from error


def _checksum(tensors: dict[str, Tensor], plain: dict[str, Any]) -> int:
    """The checksum of all plain values, and of the name, dtype, shape and content of every tensor."""
    lines = [json.dumps(plain)]
    for name, tensor in sorted(tensors.items()):
        lines.append(f"{name} {tensor.dtype} {list(tensor.shape)} {checksum(bytes_of(tensor))}")
    return checksum("\n".join(lines).encode())
