"""Messages between processes of one machine, in shared memory.

A message is a pickle with its tensors, arrays and packet bodies beside it, in an anonymous file in memory. Only the
descriptor of the file goes through the socket. The receiver maps the file: what it unpickles are views of the sender's pages.
The file has no name, so nothing remains of it when the last process that maps it has ended, however it ends.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from laconic.compression.packet import Body

_ALIGNMENT = 64
_LEAST_BYTES = 512
"""Smaller tensors and bodies are part of the pickle."""
_COUNT = struct.Struct("<Q")


def _reduced(value: Any) -> Any:
    """Tensors and bodies with their bytes beside the pickle; `NotImplemented` for everything else."""
    if type(value) is Tensor:
        plain = value.device.type == "cpu" and value.layout is torch.strided and not value.requires_grad
        if plain and value.nbytes >= _LEAST_BYTES and not (value.is_conj() or value.is_neg() or value.is_quantized):
            content = value.contiguous().view(-1).view(torch.uint8).numpy()
            return _tensor, (pickle.PickleBuffer(content), value.dtype, tuple(value.shape))
    elif type(value) is Body and len(value.data) >= _LEAST_BYTES:
        return Body, (value.codec, pickle.PickleBuffer(value.data))
    return NotImplemented


def _tensor(content: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(content, dtype=dtype).view(shape)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return _reduced(value)


def _code_pickler(file: io.BytesIO, keep: Callable[[pickle.PickleBuffer], Any]) -> pickle.Pickler:
    """A pickler that can also write functions and classes of scripts and notebooks."""
    import cloudpickle  # only where processes are used: it takes time to import

    class CodePickler(cloudpickle.Pickler):  # type: ignore[misc, name-defined]
        def reducer_override(self, value: Any) -> Any:
            reduced = _reduced(value)
            return super().reducer_override(value) if reduced is NotImplemented else reduced

    pickler: pickle.Pickler = CodePickler(file, protocol=5, buffer_callback=keep)
    return pickler


class Segment:
    """A message in an anonymous file in memory."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def of(cls, message: object, *, with_code: bool = False) -> Segment:
        """Write a message. `with_code`: it may have functions and classes that other processes cannot import."""
        file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
        pickler = (
            _code_pickler(file, buffers.append) if with_code else _Pickler(file, 5, buffer_callback=buffers.append)
        )
        pickler.dump(message)
        parts = [file.getbuffer(), *(buffer.raw() for buffer in buffers)]
        sizes = [len(part) for part in parts]
        segment = cls(os.memfd_create("laconic", os.MFD_CLOEXEC))
        try:
            table = struct.pack(f"<{1 + len(sizes)}Q", len(sizes), *sizes)
            offsets, end = _offsets(sizes)
            os.ftruncate(segment.descriptor, end)
            for part, offset in zip((memoryview(table), *parts), (0, *offsets), strict=True):
                _write(segment.descriptor, part, offset)
        except BaseException:
            segment.close()
            raise
        return segment

    def read(self, *, private: bool = False) -> Any:
        """The message, as views of the file. With `private`, changes of the views do not reach other processes."""
        length = os.fstat(self.descriptor).st_size
        access = mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE
        view = memoryview(mmap.mmap(self.descriptor, length, access=access))
        (count,) = _COUNT.unpack_from(view)
        sizes = struct.unpack_from(f"<{count}Q", view, _COUNT.size)
        offsets, _ = _offsets(sizes)
        first, *buffers = (view[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True))
        return pickle.loads(first, buffers=buffers)

    def close(self) -> None:
        """Close the descriptor. Views of the message stay valid."""
        with suppress(OSError):
            os.close(self.descriptor)

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where the parts of a message start, after the table of their sizes, and where the last one ends."""
    offsets, end = [], _COUNT.size * (1 + len(sizes))
    for size in sizes:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        offsets.append(start)
        end = start + size
    return offsets, end


def _write(descriptor: int, part: memoryview, offset: int) -> None:
    while len(part):
        written = os.pwrite(descriptor, part, offset)
        part, offset = part[written:], offset + written


def send(connection: socket.socket, *segments: Segment) -> None:
    """Send segments. `OSError` if the other process has ended."""
    socket.send_fds(connection, [bytes([len(segments)])], [segment.descriptor for segment in segments])


def receive(connection: socket.socket, most: int = 2) -> list[Segment]:
    """Wait for the segments of one `send`. `EOFError` if the other process has ended."""
    try:
        count, descriptors, _, _ = socket.recv_fds(connection, 1, most)
    except ConnectionError:
        raise EOFError from None
    if not count:
        raise EOFError
    return [Segment(descriptor) for descriptor in descriptors]
