"""Arrays in both directions: of C as views, of Python as what C reads."""

import ctypes
from collections.abc import Sequence
from typing import Any, Optional, Union

try:
    import numpy as _numpy
except ImportError:
    _numpy = None  # type: ignore[assignment]

Tokens = Union[Sequence[int], memoryview, Any]
"""Token ids: a sequence of integers, or anything with a buffer of 32-bit ones
(``array('i')``, a NumPy array of int32), which is handed over without looking
at each."""

_FORMATS = {ctypes.c_int32: "i", ctypes.c_uint8: "B", ctypes.c_uint64: "Q", ctypes.c_int64: "q"}


def view(pointer: Any, size: int) -> Any:
    """An array of C as a read-only NumPy array where NumPy is there, else as a
    memoryview. Nothing is copied: it is valid as long as C says."""
    element = pointer._type_
    code = _FORMATS[element]
    if size == 0 or not pointer:
        flat = memoryview(b"").cast(code)
    else:
        array = (element * size).from_address(ctypes.addressof(pointer.contents))
        flat = memoryview(array).cast("B").cast(code).toreadonly()
    if _numpy is not None:
        return _numpy.frombuffer(flat, dtype=_numpy.dtype(code))
    return flat


def ints(values: Optional[Tokens]) -> "tuple[Any, int]":
    """A pointer to 32-bit integers and their number, for one call. None is NULL."""
    if values is None:
        return None, 0
    try:
        buffer = memoryview(values)  # type: ignore[arg-type]
    except TypeError:
        buffer = None
    if buffer is not None and buffer.format in ("i", "l") and buffer.itemsize == 4 and buffer.c_contiguous:
        n = buffer.nbytes // 4
        if n and not buffer.readonly:
            return (ctypes.c_int32 * n).from_buffer(buffer.cast("B")), n
        return (ctypes.c_int32 * n).from_buffer_copy(buffer.cast("B")), n
    n = len(values)
    return (ctypes.c_int32 * n)(*values), n
