"""Arrays over memory of the library, and the bytes of arrays and other buffers that its functions use.

NumPy is imported for arrays only.
"""

import ctypes
import math
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

if TYPE_CHECKING:
    from numpy.typing import NDArray

Shape = Union[int, Sequence[int]]


def unsigned(name: str, value: Any, bits: int) -> int:
    """A number that C takes as one of so many bits without a sign."""
    number = operator.index(value)
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{name} is {number}: it must be at least 0 and less than 2^{bits}")
    return number


def word(name: str, value: Any) -> int:
    """A 64-bit number with or without a sign, as one without."""
    number = operator.index(value)
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"{name} {number}: it must have 64 bits")
    return number % (1 << 64)


@dataclass
class Layout:
    """Shape and dtype of an array."""

    shape: tuple[int, ...]
    dtype: Any
    itemsize: int

    @classmethod
    def of(cls, shape: Shape, dtype: Any) -> "Layout":
        lengths = shape if isinstance(shape, Sequence) else (shape,)
        checked = tuple(unsigned("a length of the shape", length, 64) for length in lengths)
        if dtype is None:
            return cls(checked, "u1", 1)
        import numpy as np

        dtype = np.dtype(dtype)
        if dtype.hasobject or dtype.itemsize == 0:
            raise _cannot_share(dtype)
        # An item that is itself an array adds dimensions.
        return cls(checked + dtype.shape, dtype.base, dtype.base.itemsize)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.itemsize

    def part(self, size: int, shape: Optional[Shape], dtype: Any, offset: int) -> "Layout":
        """The layout of an array in memory of ``size`` bytes: without a shape or dtype this one, or the rest."""
        if shape is None and dtype is None and offset == 0:
            return self
        layout = Layout.of(0 if shape is None else shape, self.dtype if dtype is None else dtype)
        if shape is None:
            layout.shape = (max(size - offset, 0) // layout.itemsize,)
        return layout

    def over(self, memory: Any, offset: int) -> "NDArray[Any]":
        """An array over memory from byte ``offset`` on."""
        import numpy as np

        return np.frombuffer(memory, self.dtype, math.prod(self.shape), offset).reshape(self.shape)


def _cannot_share(dtype: Any) -> ValueError:
    return ValueError(f"items of {dtype!r}: only numbers, text and records of a fixed size can be shared")


def extent_of(part: Any) -> tuple[int, int]:
    """Address and size of the memory from the first to the last byte of an array or a buffer."""
    interface = getattr(part, "__array_interface__", None)
    if interface is None:
        view = memoryview(part)
        return (ctypes.addressof(ctypes.c_char.from_buffer(view)), view.nbytes) if view.nbytes else (0, 0)
    if part.size == 0:
        return 0, 0
    start = end = interface["data"][0]
    for length, stride in zip(part.shape, part.strides):
        if stride < 0:
            start += (length - 1) * stride
        else:
            end += (length - 1) * stride
    return start, end - start + part.itemsize


@dataclass
class Elements:
    """Elements of equal size at equal distances in memory, as arguments of the library; a buffer is one element."""

    #: Address of the first one, or the bytes themselves.
    start: Any
    #: Size of each in bytes.
    size: int
    count: int
    #: Distance between their starts, in elements.
    stride: int
    #: What keeps the memory.
    owner: Any
    #: The array whose items the memory is a copy of.
    original: Any = None

    def store(self) -> None:
        """Stores what the library has loaded in the original array."""
        if self.original is not None:
            self.original[...] = self.owner


def source(data: Any) -> Elements:
    """The bytes of an array or a buffer, which the library loads, in the order of their indices."""
    array = _array(data)
    if array is not None:
        return _whole(array)
    view = memoryview(data)
    if view.readonly or not view.c_contiguous:
        copy = data if isinstance(data, bytes) else view.tobytes()
        return Elements(copy, len(copy), 1, 1, copy)
    return _writable(view)


def target(into: Any) -> Elements:
    """The bytes of an array or a buffer, in which the library stores."""
    array = _array(into)
    if array is not None:
        return _whole(_checked_writable(array), is_target=True)
    view = memoryview(into)
    if view.readonly:
        raise ValueError("the buffer is read-only: pass one that can be changed")
    if not view.c_contiguous:
        raise ValueError("the buffer is not contiguous: pass one that is, or a NumPy array")
    return _writable(view)


def strided(data: Any, is_target: bool = False) -> Elements:
    """The elements of the first dimension of an array, in the distance that they have in memory."""
    array = _array(data)
    if array is None or array.ndim == 0:
        raise TypeError(f"{type(data).__name__}: elements are those of a NumPy array")
    if is_target:
        _checked_writable(array)
    count = len(array)
    size = array.nbytes // max(count, 1)
    if size == 0:
        return Elements(None, 0, 0, 1, array)
    distance = array.strides[0] if count > 1 else size
    if array[:1].flags.c_contiguous and distance >= size and distance % size == 0:
        return Elements(array.ctypes.data, size, count, distance // size, array)
    # The library takes distances in whole elements.
    whole = _whole(array, is_target)
    return Elements(whole.start, size, count, 1, whole.owner, whole.original)


def _array(data: Any) -> Any:
    """The data if it is an array; not all dtypes have the buffer protocol."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(data, numpy.ndarray):
        return None
    if data.dtype.hasobject:
        raise _cannot_share(data.dtype)
    return data


def _checked_writable(array: Any) -> Any:
    if not array.flags.writeable:
        raise ValueError("the array is read-only: pass one that can be changed")
    return array


def _whole(array: Any, is_target: bool = False) -> Elements:
    """All items of an array without gaps, in a copy if the array has another order."""
    if array.flags.c_contiguous:
        return Elements(array.ctypes.data, array.nbytes, 1, 1, array)
    copy = array.copy(order="C")
    return Elements(copy.ctypes.data, copy.nbytes, 1, 1, copy, array if is_target else None)


def _writable(view: memoryview) -> Elements:
    if view.nbytes == 0:
        return Elements(None, 0, 1, 1, view)
    first = ctypes.c_char.from_buffer(view)
    return Elements(ctypes.addressof(first), view.nbytes, 1, 1, first)
