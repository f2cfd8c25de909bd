"""Messages between processes of one machine, in shared memory (Linux).

A message is a pickle with its tensors, arrays and packet bodies beside it, in an anonymous file in memory. Only the number
or the descriptor of the file goes through the socket. Both sides map the file, so what the receiver unpickles are views of
the memory that the sender has written. A file has no name: nothing remains of it when the last process that maps it has
ended, however it ends.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
import struct
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.compression.packet import Body

ALIGNMENT = 64
LEAST_BYTES = 512
"""Smaller tensors and bodies are part of the pickle."""
LEAST_SHARED_BYTES = 16_384
"""Smaller bodies are sent again with every message."""
MOST_SHARED = 3
"""How many bodies the receiver remembers: the model and what else all clients of a round get."""
MOST_REUSED_BYTES = 32_000_000
"""Larger files are not reused, so that no memory stays occupied between rounds."""
_HEADER_BYTES = 4096
Bytes = NDArray[np.uint8]


class File:
    """An anonymous file in memory and its mapping."""

    def __init__(self, descriptor: int, *, private: bool = False) -> None:
        self.descriptor, self.size = descriptor, os.fstat(descriptor).st_size
        access = mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE
        self.bytes: Bytes = np.frombuffer(mmap.mmap(descriptor, self.size, access=access), np.uint8)

    @classmethod
    def of_size(cls, size: int) -> File:
        """A new file."""
        descriptor = os.memfd_create("laconic", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, max(size, 1))
        return cls(descriptor)

    def close(self) -> None:
        """Close the descriptor. Views of the memory stay valid."""
        os.close(self.descriptor)


class Message:
    """A pickled object: a table of sizes, the pickle, and the buffers beside it."""

    def __init__(self, value: object, pickler: Callable[..., pickle.Pickler]) -> None:
        file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
        pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
        contents = [file.getbuffer(), *(buffer.raw() for buffer in buffers)]
        sizes = [len(content) for content in contents]
        self._parts = [memoryview(struct.pack(f"<{1 + len(sizes)}Q", len(sizes), *sizes)), *contents]
        offsets, self.size = _offsets(sizes)
        self._offsets = [0, *offsets]

    def write(self, target: Bytes) -> None:
        """Copy the message to shared memory."""
        for part, offset in zip(self._parts, self._offsets, strict=True):
            if len(part):
                target[offset : offset + len(part)] = np.frombuffer(part, np.uint8)

    @staticmethod
    def read(source: Bytes) -> Any:
        """The object. Its tensors, arrays and bodies are views of `source`."""
        view = source.data
        (count,) = struct.unpack_from("<Q", view)
        sizes = struct.unpack_from(f"<{count}Q", view, 8)
        offsets, _ = _offsets(sizes)
        first, *buffers = (view[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True))
        return pickle.loads(first, buffers=buffers)


def _offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where the parts of a message start, after the table of their sizes, and where the last one ends."""
    offsets, end = [], 8 * (1 + len(sizes))
    for size in sizes:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        offsets.append(start)
        end = start + size
    return offsets, end


class _Pickler(pickle.Pickler):
    """Puts the bytes of tensors and bodies beside the pickle."""

    shared: SharedBodies | None = None

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor:
            return _reduced_tensor(value)
        if type(value) is Body and len(value.data) >= LEAST_BYTES:
            content = pickle.PickleBuffer(value.data)
            return (Body, (value.codec, content)) if self.shared is None else self.shared.reduced(value, content)
        return NotImplemented


class SharedBodies:
    """The bodies that a sender need not send again, such as the model of a round: the receiver remembers the last few.

    The receiver then also decodes them once.
    """

    def __init__(self) -> None:
        self._sent: dict[int, Body] = {}
        self._count = 0

    def reduced(self, body: Body, content: pickle.PickleBuffer) -> Any:
        """How to pickle a body."""
        if len(body.data) < LEAST_SHARED_BYTES:
            return Body, (body.codec, content)
        for number, sent in self._sent.items():
            if sent is body:
                return _recalled, (number,)
        self._count += 1
        _keep(self._sent, self._count, body)
        return _remembered, (self._count, body.codec, content)


_BODIES: dict[int, Body] = {}
"""In a worker: the bodies that its parent need not send again."""


def _remembered(number: int, codec: int, content: memoryview) -> Body:
    return _keep(_BODIES, number, Body(codec, content))


def _recalled(number: int) -> Body:
    return _BODIES[number]


def _keep(bodies: dict[int, Body], number: int, body: Body) -> Body:
    """Add a body, and drop the oldest one. Sender and receiver do the same, so both have the same bodies."""
    bodies[number] = body
    if len(bodies) > MOST_SHARED:
        del bodies[min(bodies)]
    return body


def _reduced_tensor(value: Tensor) -> Any:
    plain = value.device.type == "cpu" and value.layout is torch.strided and not value.requires_grad
    if not plain or value.nbytes < LEAST_BYTES or value.is_conj() or value.is_neg() or value.is_quantized:
        return NotImplemented
    content = value.contiguous().view(-1).view(torch.uint8).numpy()
    return _tensor, (pickle.PickleBuffer(content.data), value.dtype, tuple(value.shape))


def _tensor(content: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(content, dtype=dtype).view(shape)


def written(value: object) -> File:
    """A file with an object that several processes read. It may have functions and classes of scripts and notebooks."""
    import cloudpickle  # only where processes are used: it takes time to import

    class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            reduced = _reduced_tensor(value) if type(value) is Tensor else NotImplemented
            return super().reducer_override(value) if reduced is NotImplemented else reduced

    message = Message(value, CodePickler)
    file = File.of_size(message.size)
    message.write(file.bytes)
    return file


def _send(connection: socket.socket, content: bytes, file: File) -> None:
    try:
        socket.send_fds(connection, [content], [file.descriptor])
    except OSError:
        raise EOFError from None


@dataclass(frozen=True)
class _Header:
    """What goes through the socket: where the message is, and which files the sender has read and no longer uses."""

    number: int
    size: int
    released: list[int]


class Channel:
    """One end of a connection between two processes. Only one thread may use it at a time.

    Files are used again when the receiver has dropped every view of the message. Fresh memory would cost many times as much
    as copying into it.
    """

    def __init__(self, connection: socket.socket, *, shares_bodies: bool = False) -> None:
        self.connection = connection
        self._own: dict[int, File] = {}
        self._free: list[int] = []
        self._count = 0
        self._theirs: dict[int, File] = {}
        self._released: deque[int] = deque()
        """Numbers of the other side's files, from finalizers that run on any thread."""
        self._shared = SharedBodies() if shares_bodies else None

    def send(self, value: object) -> None:
        """Send an object. `EOFError` if the other process has ended."""
        message = Message(value, self._pickler)
        number = self._file_for(message.size)
        file = self._own[number]
        message.write(file.bytes)
        header = _Header(number, message.size, [self._released.popleft() for _ in range(len(self._released))])
        _send(self.connection, pickle.dumps(header), file)
        if file.size > MOST_REUSED_BYTES:
            self._own.pop(number).close()

    def receive(self) -> Any:
        """Wait for an object. `EOFError` if the other process has ended."""
        try:
            content, descriptors, _, _ = socket.recv_fds(self.connection, _HEADER_BYTES, 1)
        except ConnectionError:
            raise EOFError from None
        if not content:
            raise EOFError
        header: _Header = pickle.loads(content)
        self._free += [number for number in header.released if number in self._own]
        file = self._theirs.get(header.number)
        if file is None or file.size < header.size:
            file = self._theirs[header.number] = File(descriptors[0])
        for descriptor in descriptors:
            os.close(descriptor)
        if file.size > MOST_REUSED_BYTES:
            del self._theirs[header.number]
        message = file.bytes[: header.size]
        weakref.finalize(message, self._released.append, header.number)
        return Message.read(message)

    def send_file(self, file: File) -> None:
        """Send a file that several processes read. `EOFError` if the other process has ended."""
        _send(self.connection, b"file", file)

    def receive_file(self) -> File:
        """Wait for a file. What this process changes in it does not reach others."""
        _, (descriptor,), _, _ = socket.recv_fds(self.connection, 4, 1)
        file = File(descriptor, private=True)
        file.close()
        return file

    def _file_for(self, size: int) -> int:
        """The number of a free file that is large enough."""
        fitting = [number for number in self._free if self._own[number].size >= size]
        if fitting:
            chosen = min(fitting, key=lambda number: self._own[number].size)
            self._free.remove(chosen)
            return chosen
        if self._free:
            number = self._free.pop()
            self._own[number].close()
        else:
            number = self._count = self._count + 1
        self._own[number] = File.of_size(size + size // 4)
        return number

    def _pickler(self, *arguments: Any, **options: Any) -> pickle.Pickler:
        pickler = _Pickler(*arguments, **options)
        pickler.shared = self._shared
        return pickler

    def close(self) -> None:
        """Close the connection and all files."""
        self.connection.close()
        for file in self._own.values():
            file.close()
        self._own, self._free = {}, []
