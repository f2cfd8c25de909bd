"""A decoder written from docs/reference/wire-format.md alone, in plain Python: nothing of Laconic is used."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b

import xxhash

SHARES = 1 << 24
TABLE_ZERO = 5.124344962817281
MASK64 = (1 << 64) - 1


def single(number: float) -> float:
    return struct.unpack("<f", struct.pack("<f", number))[0]


def bits_of(data: bytes, highest_first: bool) -> Iterator[int]:
    for byte in data:
        yield from (byte >> (7 - place if highest_first else place) & 1 for place in range(8))


class Packed:
    """Numbers of a few bits one after the other, the lowest bit first."""

    def __init__(self, data: bytes) -> None:
        self.number = int.from_bytes(data, "little")

    def take(self, width: int) -> int:
        found = self.number & ((1 << width) - 1)
        self.number >>= width
        return found


class Ans:
    """The entropy coder."""

    def __init__(self, data: bytes) -> None:
        assert not data or data[-1], "the last byte is not 0"
        padded = data + bytes(-len(data) % 4)
        self.words = list(struct.unpack(f"<{len(padded) // 4}I", padded))
        self.state = 0
        while self.words and self.state < 1 << 32:
            self.state = self.state << 32 | self.words.pop()

    def take(self, count: int, weights: Sequence[float]) -> list[int]:
        scaled = [int(weight / max(weights) * 2**30) for weight in weights]
        shares = [1 + each * (SHARES - len(weights)) // sum(scaled) for each in scaled]
        shares[scaled.index(max(scaled))] += SHARES - sum(shares)
        edges = [0]
        for share in shares:
            edges.append(edges[-1] + share)
        found = []
        for _ in range(count):
            slot = self.state % SHARES
            symbol = next(index for index in range(len(shares)) if slot < edges[index + 1])
            found.append(symbol)
            self.state = shares[symbol] * (self.state >> 24) + slot - edges[symbol]
            if self.state < 1 << 32 and self.words:
                self.state = self.state << 32 | self.words.pop()
        return found

    def table(self, size: int) -> list[float]:
        entries = self.take(size, [TABLE_ZERO] + [1 / (number + 1) for number in range(1, 256)])
        return [float(entry**2) for entry in entries] if any(entries) else [1.0] * size

    def finish(self) -> None:
        assert not self.words and not self.state


def bit_weights(ones: int, bits: int) -> list[float]:
    chance = min(max(ones, 1), max(bits - 1, 1)) / max(bits, 2)
    zero, one = [1.0], [1.0]
    for _ in range(8):
        zero.append(zero[-1] * (1 - chance))
        one.append(one[-1] * chance)
    return [one[byte.bit_count()] * zero[8 - byte.bit_count()] for byte in range(256)]


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        self.at += size
        assert self.at <= len(self.data)
        return self.data[self.at - size : self.at]

    def number(self) -> int:
        value, place = 0, 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << place
            place += 7
            if byte < 128:
                return value

    def floats(self, count: int, kind: str) -> list[float]:
        return list(struct.unpack(f"<{count}{kind}", self.take(count * struct.calcsize(kind))))


def philox(seed: int) -> Iterator[int]:
    """Philox 4x64 with 10 rounds; the counter is raised before each block."""
    counter = 0
    while True:
        counter += 1
        block = [counter >> (64 * place) & MASK64 for place in range(4)]
        key = [seed, 0]
        for _ in range(10):
            first, second = 0xD2E7470EE14C6C93 * block[0], 0xCA5A826395121157 * block[2]
            block = [
                (second >> 64) ^ block[1] ^ key[0],
                second & MASK64,
                (first >> 64) ^ block[3] ^ key[1],
                first & MASK64,
            ]
            key = [(key[0] + 0x9E3779B97F4A7C15) & MASK64, (key[1] + 0xBB67AE8584CAA73B) & MASK64]
        yield from block


def seeded(ratio: float, seed: int, groups: list[tuple[int, int]]) -> list[int]:
    draws, found = philox(seed), []
    for start, end in groups:
        size = end - start
        kept = max(1, math.floor(ratio * size))
        wanted, marked = min(kept, size - kept), set()
        while len(marked) < wanted:
            for _ in range(min(wanted - len(marked), 65536)):
                marked.add(next(draws) % size)
        chosen = marked if kept <= size - kept else set(range(size)) - marked
        found += sorted(start + position for position in chosen)
    return found


def from_gaps(gaps: list[int]) -> list[int]:
    positions, last = [], -1
    for gap in gaps:
        last += gap + 1
        positions.append(last)
    return positions


def width_of(size: int, count: int, factor: float) -> int:
    return max(1, int(factor * (size / max(1, count)))).bit_length() - 1


Later = Callable[[Ans], list[int]]
"""Positions of which the fixed fields have been read."""


def listed(reader: Reader, size: int, rice: bool) -> tuple[int, Later]:
    count = reader.number()
    if 8 * count > size:
        with_table = reader.number()

        def bitmap(ans: Ans) -> list[int]:
            weights = ans.table(256) if with_table else bit_weights(count, size)
            bits = bits_of(bytes(ans.take(-(-size // 8), weights)), highest_first=True)
            return [position for position, bit in enumerate(bits) if bit]

        return count, bitmap
    length, form = divmod(reader.number(), 4)
    if form == 3:
        inside = Packed(reader.take(length))

        def classed(ans: Ans) -> list[int]:
            classes = ans.take(count, ans.table(64))
            return from_gaps([((2 + (each & 1)) << (each >> 1)) - 2 + inside.take(each >> 1) for each in classes])

        return count, classed
    runs = -(-count // 128)
    widths = [width_of(size, count, 0.96 if rice else 0.7)] * runs
    if form == 2:
        packed = Packed(reader.take(-(-5 * runs // 8)))
        widths = [packed.take(5) for _ in range(runs)]
    each = [widths[index // 128] for index in range(count)]
    low = Packed(reader.take(-(-sum(each) // 8)))
    sent = reader.take(length) if rice else None

    def split(ans: Ans) -> list[int]:
        unary = sent
        if unary is None:
            unary = bytes(ans.take(length, ans.table(256) if form == 1 else bit_weights(count, 8 * length)))
        bits, gaps = bits_of(unary, highest_first=False), []
        for width in each:
            high = 0
            while not next(bits):
                high += 1
            gaps.append(high << width | low.take(width))
        return from_gaps(gaps)

    return count, split


def decode_plain(packet: bytes, size: int) -> list[float]:
    """The vector in a packet of `laconic.compression.encode`."""
    version, codec, _, _, _, _, checksum = struct.unpack("<BBBH3s3sI", packet[:15])
    assert version == 2
    seed = xxhash.xxh3_64_intdigest(packet[15:])
    kinds = {}
    for name, kind in (("float32", "f"), ("float64", "d")):
        layout = blake2b(f"[('', ({size},))]torch.{name}".encode(), digest_size=6).digest()
        kinds[xxhash.xxh3_64_intdigest(packet[:11] + layout, seed=seed) & 0xFFFFFFFF] = kind
    return decode_vector(codec, packet[15:], [size], kinds[checksum])


def rotated_back(vector: list[float], groups: list[tuple[int, int]], seed: int, kind: str) -> list[float]:
    rounded, draws, result = single if kind == "f" else float, philox(seed), []

    def transformed(group: list[float]) -> list[float]:
        if not group:
            return []
        size, half = 1 << (len(group).bit_length() - 1), 1
        block = group[:size]
        while half < size:
            for index in (index for index in range(size) if not index & half):
                first, second = block[index], block[index + half]
                block[index], block[index + half] = rounded(first + second), rounded(first - second)
            half *= 2
        factor = rounded(size**-0.5)
        return [rounded(value * factor) for value in block] + transformed(group[size:])

    for start, end in groups:
        words = [[next(draws) for _ in range(-(-(end - start) // 64))] for _ in range(2)]
        signs = [[1 - 2 * (of[place // 64] >> place % 64 & 1) for place in range(end - start)] for of in words]
        group = transformed(vector[start:end])
        group = transformed([value * sign for value, sign in zip(group, signs[1], strict=True)][::-1])
        result += [value * sign for value, sign in zip(group, signs[0], strict=True)]
    return result


def decode_vector(
    codec: int, body: bytes, layers: Sequence[int], kind: str, rotation: int | None = None
) -> list[float]:
    if codec == 10:
        seed, codec = struct.unpack("<IB", body[:5])
        return decode_vector(codec, body[5:], layers, kind, seed)
    size, reader = sum(layers), Reader(body)
    sizes = list(layers) if codec & 64 else [size]
    if codec == 9:
        chunk, codec = reader.number(), reader.take(1)[0]
        sizes = [min(chunk, size - start) for start in range(0, size, chunk)]
    groups, start = [], 0
    for each in sizes:
        groups += [(start, start + each)] if each else []
        start += each
    form, where = codec & 15, codec & 48
    if where == 32:
        ratio, seed = struct.unpack("<dQ", reader.take(16))
        drawn = seeded(ratio, seed, groups)
        count, locate = len(drawn), lambda ans: drawn
    elif where == 16:
        count, locate = listed(reader, size, bool(codec & 128))
    else:
        count, locate = size, lambda ans: list(range(size))
    read = values(form, count, len(groups), reader, kind)
    ans = Ans(reader.data[reader.at :])
    positions = locate(ans)
    assert len(positions) == count
    whole = [0.0] * size
    group = 0
    for position, (value, scale) in zip(positions, read(ans), strict=True):
        while groups[group][1] <= position:
            group += 1
        whole[position] = value if scale is None else scale(value, group)
    ans.finish()
    return whole if rotation is None else rotated_back(whole, groups, rotation, kind)


Scale = Callable[[float, int], float]


def values(
    form: int, count: int, groups: int, reader: Reader, kind: str
) -> Callable[[Ans], list[tuple[float, Scale | None]]]:
    rounded = single if kind == "f" else float
    if form in (1, 2, 3):
        assert form == 3 or form == (1 if kind == "f" else 2)
        exact = reader.floats(count, "e" if form == 3 else kind)
        return lambda ans: [(value, None) for value in exact]
    if form == 4:
        halves = struct.unpack(f"<{count}H", reader.take(2 * count))
        wide = [struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in halves]
        return lambda ans: [(value, None) for value in wide]
    scales = reader.floats(groups, kind)
    if form == 5:
        signs = [1 - 2 * bit for bit in bits_of(reader.take(-(-count // 8)), highest_first=True)][:count]
        return lambda ans: [(sign, lambda value, group: value * scales[group]) for sign in signs]
    offsets = reader.floats(groups, kind) if form == 7 else None
    if not count:
        return lambda ans: []
    signed, (width, with_table), size = reader.number(), divmod(reader.number(), 2), reader.number()
    lowest = -(signed + 1) // 2 if signed % 2 else signed // 2
    low = Packed(reader.take(-(-count * width // 8)))

    def scale(level: float, group: int) -> float:
        if form == 11:
            return rounded(math.ldexp(scales[group], 1 - abs(level)) * ((level > 0) - (level < 0)))
        product = rounded(level * scales[group])
        return product if offsets is None else rounded(product + offsets[group])

    def levels(ans: Ans) -> list[tuple[float, Scale | None]]:
        symbols = ans.take(count, ans.table(size + 1) if with_table else [1.0] * (size + 1))
        return [(lowest + (symbol << width | low.take(width)), scale) for symbol in symbols]

    return levels
