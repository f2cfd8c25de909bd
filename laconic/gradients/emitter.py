"""Numba intrinsics whose bodies emit LLVM code for vectors at their place in the caller.

`vectors.py` and `sparse.py` emit with it what LLVM does not vectorize by itself. With them a round of LeNet-5 takes 0.27 to
0.34 CPU seconds; with torch's operators it took 0.59 to 0.81 (docs/performance.md, "Compiled kernels"). The readable
reference is torch's autograd, the strategy `loop`: tests/gradients/test_compiled.py compares every operation with it.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, config, types
from numba.extending import intrinsic


def _has_wide_vectors() -> bool:
    """Whether Numba compiles for AVX-512: by NUMBA_CPU_FEATURES, or for this CPU."""
    chosen: Any = config  # its settings have no types
    if chosen.CPU_FEATURES is not None:
        return "+avx512f" in chosen.CPU_FEATURES
    return chosen.CPU_NAME != "generic" and bool(llvm.get_host_cpu_features().get("avx512f"))


WIDE = _has_wide_vectors()
VECTOR_BYTES = 64 if WIDE else 32
ROWS, COLUMNS = ((6, 4, 2, 1), (4, 2, 1)) if WIDE else ((4, 2, 1), (3, 2, 1))
"""Sizes of the blocks of sums that are kept in registers: 24 of 32 registers, or 12 of 16."""
LINES = (3, 2, 1)
"""Lines of `add_products`, in place of columns."""
_cgutils: Any = cgutils  # it has no types
INDEX, LANE, BIT = ir.IntType(64), ir.IntType(32), ir.IntType(1)


class Emitter:
    """The arguments of an intrinsic by name, arrays as pointers, and instructions on vectors of their numbers."""

    def __init__(self, names: list[str], context: Any, builder: Any, signature: Any, values: Any) -> None:
        self.builder, self.named = builder, {}
        for name, kind, value in zip(names, signature.args, values, strict=True):
            is_array = isinstance(kind, types.Array)
            self.named[name] = context.make_array(kind)(context, builder, value).data if is_array else value
            if isinstance(kind, types.Record):
                self.record, self.fields = value, kind.fields
        dtype = next(kind.dtype for kind in signature.args if isinstance(kind, types.Array))
        self.number, self.lanes = context.get_value_type(dtype), VECTOR_BYTES * 8 // dtype.bitwidth
        self.vector = ir.VectorType(self.number, self.lanes)
        self.zero = ir.Constant(self.vector, None)
        self.suffix = f"v{self.lanes}f{dtype.bitwidth}"

    def __getattr__(self, name: str) -> Any:
        """An argument, or a field of the record among the arguments."""
        if name in self.named:
            return self.named[name]
        start = self.builder.bitcast(self.record, ir.IntType(8).as_pointer())
        field = self.builder.gep(start, [ir.Constant(INDEX, self.fields[name].offset)])
        return self.builder.load(self.builder.bitcast(field, INDEX.as_pointer()))

    def at(self, array: Any, *offsets: Any) -> Any:
        """The address of an entry."""
        for offset in offsets:
            array = self.builder.gep(array, [constant(offset)])
        return array

    def times(self, one: Any, other: Any) -> Any:
        """The product of two indices."""
        return self.builder.mul(constant(one), constant(other))

    def plus(self, one: Any, other: Any) -> Any:
        """The sum of two indices."""
        return self.builder.add(constant(one), constant(other))

    def load(self, address: Any) -> Any:
        """A vector in memory."""
        return self.builder.load(self.builder.bitcast(address, self.vector.as_pointer()), align=4)

    def store(self, value: Any, address: Any) -> None:
        """Write a vector to memory."""
        self.builder.store(value, self.builder.bitcast(address, self.vector.as_pointer()), align=4)

    def splat(self, scalar: Any) -> Any:
        """A vector whose lanes all hold the scalar."""
        vector = ir.Constant(ir.VectorType(scalar.type, self.lanes), ir.Undefined)
        one = self.builder.insert_element(vector, scalar, ir.Constant(LANE, 0))
        return self.shuffle(one, one, [0] * self.lanes)

    def shuffle(self, one: Any, other: Any, order: list[int]) -> Any:
        """Lanes of two vectors, counted through both, in this order."""
        return self.builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(LANE, len(order)), order))

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """a b + c, rounded once."""
        return self._call("llvm.fma", self.vector, [a, b, c])

    def masked_load(self, address: Any, mask: Any, other: Any) -> Any:
        """A vector in memory; the lanes of `other` where the mask is 0."""
        pointer = self.builder.bitcast(address, self.vector.as_pointer())
        return self._call("llvm.masked.load", self.vector, [pointer, ir.Constant(LANE, 4), mask, other], ".p0")

    def masked_store(self, value: Any, address: Any, mask: Any) -> None:
        """Write the lanes where the mask is 1."""
        pointer = self.builder.bitcast(address, self.vector.as_pointer())
        self._call("llvm.masked.store", ir.VoidType(), [value, pointer, ir.Constant(LANE, 4), mask], ".p0")

    def _call(self, name: str, result: Any, arguments: list[Any], more: str = "") -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        function = _cgutils.get_or_insert_function(self.builder.module, kind, f"{name}.{self.suffix}{more}")
        return self.builder.call(function, arguments)

    def mask(self, count: Any) -> Any:
        """The first `count` lanes."""
        numbers = ir.Constant(ir.VectorType(INDEX, self.lanes), list(range(self.lanes)))
        return self.builder.icmp_signed("<", numbers, self.splat(count))

    def total(self, vector: Any) -> Any:
        """The sum of the lanes, by halves."""
        width = self.lanes
        while width > 1:
            width //= 2
            halves = [self.shuffle(vector, vector, list(range(start, start + width))) for start in (0, width)]
            vector = self.builder.fadd(*halves)
        return self.builder.extract_element(vector, ir.Constant(LANE, 0))

    def variables(self, count: int, start: Any) -> list[Any]:
        """Variables, which LLVM keeps in registers."""
        slots = [_cgutils.alloca_once(self.builder, start.type) for _ in range(count)]
        for slot in slots:
            self.builder.store(start, slot)
        return slots

    @contextmanager
    def loop(self, count: Any) -> Iterator[Any]:
        """A loop over 0, 1, …, count - 1."""
        with _cgutils.for_range(self.builder, count, intp=INDEX) as found:
            yield found.index

    @contextmanager
    def bits(self, word: Any) -> Iterator[Any]:
        """A loop over the bits of a variable that are 1. At least one must be."""
        builder, body = self.builder, self.builder.append_basic_block()
        builder.branch(body)
        builder.position_at_end(body)
        rest = builder.load(word)
        yield builder.cttz(rest, ir.Constant(BIT, 1))
        rest = builder.and_(rest, builder.sub(rest, constant(1)))
        builder.store(rest, word)
        end = builder.append_basic_block()
        builder.cbranch(builder.icmp_signed("!=", rest, constant(0)), body, end)
        builder.position_at_end(end)


def constant(value: Any) -> Any:
    """An integer as a value of LLVM; other values as they are."""
    return ir.Constant(INDEX, value) if isinstance(value, int) else value


def emitted(parameters: str) -> Callable[[Callable[[Any], None]], Any]:
    """Decorator: an intrinsic with these parameters and without a result."""
    names = parameters.split()

    def decorate(emit: Callable[[Any], None]) -> Any:
        def typed(context: Any, *arguments: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                emit(Emitter(names, context, builder, signature, values))
                return context.get_dummy_value()

            return types.void(*arguments), generate

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        typed.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, kind) for name in ("context", *names)]
        )
        return intrinsic(typed)

    return decorate


def for_sizes(e: Emitter, emit: Callable[[int, int], None], widths: tuple[int, ...] = COLUMNS) -> None:
    """Code for every size of a block, and a switch between them by `rows` and `columns`."""
    builder, end = e.builder, e.builder.append_basic_block()
    switch = builder.switch(e.plus(e.times(e.rows, 10), e.columns), end)
    for rows, columns in itertools.product(ROWS, widths):
        block = builder.append_basic_block()
        switch.add_case(constant(10 * rows + columns), block)
        builder.position_at_end(block)
        emit(rows, columns)
        builder.branch(end)
    builder.position_at_end(end)
