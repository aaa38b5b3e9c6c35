"""Finds libsluice, checks that it fits, and calls it."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from pathlib import Path
from types import TracebackType
from typing import Any, Optional, TypeVar

from ._structs import (
    Agreement,
    Batch,
    Decision,
    Event,
    GraphKey,
    Info,
    KvEvents,
    Offer,
    Outputs,
    Plan,
    Proposal,
    Replayed,
    Request,
    Result,
    Stats,
)
from .errors import ForkedError, SluiceError, error_for

ABI_VERSION = 1
"""The ABI that this package speaks, ``SLUICE_ABI_VERSION`` of the header."""

FUNCTIONS: "dict[str, tuple[Any, list[Any]]]" = {
    "sluice_abi_version": (c_uint32, []),
    "sluice_status_text": (c_char_p, [c_int]),
    "sluice_text": (c_char_p, [c_int, c_int]),
    "sluice_last_error": (c_int, [c_uint64, c_char_p, c_size_t, POINTER(c_size_t)]),
    "sluice_free": (c_int, [c_uint64]),
    "sluice_new": (c_int, [c_char_p, c_size_t, POINTER(c_uint64), c_char_p, c_size_t]),
    "sluice_info": (c_int, [c_uint64, POINTER(Info)]),
    "sluice_add": (c_int, [c_uint64, POINTER(Request), POINTER(c_uint64)]),
    "sluice_abort": (c_int, [c_uint64, c_uint64]),
    "sluice_finish": (c_int, [c_uint64, c_uint64, c_int]),
    "sluice_find": (c_int, [c_uint64, c_char_p, POINTER(c_uint64)]),
    "sluice_request_state": (c_int, [c_uint64, c_uint64, POINTER(c_int32)]),
    "sluice_set_grammar": (c_int, [c_uint64, c_uint64, c_int]),
    "sluice_end_turn": (c_int, [c_uint64, c_char_p, c_int]),
    "sluice_offer": (c_int, [c_uint64, c_uint64, POINTER(Offer)]),
    "sluice_deliver": (c_int, [c_uint64, POINTER(Event), c_size_t]),
    "sluice_verdict_class": (c_int, [c_int]),
    "sluice_graphs_new": (c_int, [c_char_p, c_size_t, POINTER(c_uint64), c_char_p, c_size_t]),
    "sluice_classify": (c_int, [c_uint64, POINTER(Batch), POINTER(c_uint8), POINTER(Decision)]),
    "sluice_graph_keys": (c_int, [c_uint64, POINTER(GraphKey), c_size_t, POINTER(c_size_t)]),
    "sluice_set_captured": (c_int, [c_uint64, c_int, POINTER(c_int32), c_size_t]),
    "sluice_plan": (c_int, [c_uint64, c_int64, POINTER(POINTER(Plan))]),
    "sluice_apply": (c_int, [c_uint64, c_uint64, POINTER(Result), POINTER(POINTER(Outputs))]),
    "sluice_next_deadline": (c_int, [c_uint64, POINTER(c_int64)]),
    "sluice_has_work": (c_int, [c_uint64, POINTER(c_int32)]),
    "sluice_encode_plan": (c_int, [c_uint64, c_uint64, c_void_p, c_size_t, POINTER(c_size_t)]),
    "sluice_set_pause": (c_int, [c_uint64, c_int]),
    "sluice_set_throttle": (c_int, [c_uint64, c_int]),
    "sluice_drain": (c_int, [c_uint64]),
    "sluice_reset_cache": (c_int, [c_uint64, c_int]),
    "sluice_propose": (c_int, [c_uint64, POINTER(Proposal)]),
    "sluice_agree": (c_int, [POINTER(Proposal), c_size_t, POINTER(Agreement)]),
    "sluice_set_agreement": (c_int, [c_uint64, POINTER(Agreement)]),
    "sluice_take_events": (c_int, [c_uint64, POINTER(POINTER(KvEvents))]),
    "sluice_stats": (c_int, [c_uint64, POINTER(Stats)]),
    "sluice_queue": (c_int, [c_uint64, c_int, POINTER(c_uint64), c_size_t, POINTER(c_size_t)]),
    "sluice_dump": (c_int, [c_uint64, c_char_p, c_size_t, POINTER(c_size_t)]),
    "sluice_check": (c_int, [c_uint64]),
    "sluice_flush_recording": (c_int, [c_uint64]),
    "sluice_replay": (c_int, [c_char_p, POINTER(Replayed), c_char_p, c_size_t]),
}
"""Every function of the header: what it returns and what it takes."""

_libraries: "dict[str, ctypes.CDLL]" = {}
_forked = False


def _in_child() -> None:
    global _forked
    _forked = bool(_libraries)


os.register_at_fork(after_in_child=_in_child)


def check_fork() -> None:
    """Raises :class:`ForkedError` in a child of a process that had loaded the
    library: the Go runtime inside it does not survive ``fork``."""
    if _forked:
        raise ForkedError("libsluice was loaded before fork() and cannot be used in the child; start the child with spawn, or load the library there")


def candidates() -> "list[str]":
    """Where the library is looked for, in order: ``$SLUICE_LIBRARY`` (the file),
    ``$SLUICE_LIB`` (the folder that ``make lib`` fills), this package's folder,
    and wherever the system's loader looks."""
    found = []
    if path := os.environ.get("SLUICE_LIBRARY"):
        found.append(path)
    if prefix := os.environ.get("SLUICE_LIB"):
        found.append(str(Path(prefix, "lib", "libsluice.so")))
    beside = Path(__file__).with_name("libsluice.so")
    if beside.exists():
        found.append(str(beside))
    found.append(ctypes.util.find_library("sluice") or f"libsluice.so.{ABI_VERSION}")
    return found


def load(path: Optional[str] = None) -> ctypes.CDLL:
    """Loads the library, once per path, and checks its ABI."""
    check_fork()
    path = path or candidates()[0]
    if lib := _libraries.get(path):
        return lib
    try:
        lib = ctypes.CDLL(path)
    except OSError as err:
        raise OSError(f"{err}: build libsluice with `make lib`, and name it in SLUICE_LIBRARY (the file) or SLUICE_LIB (the folder that was filled)") from err
    lib.sluice_abi_version.restype = c_uint32
    version = lib.sluice_abi_version()
    if version != ABI_VERSION:
        raise SluiceError(0, f"{path} has ABI {version}, this package speaks {ABI_VERSION}")
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    _libraries[path] = lib
    return lib


class Handle:
    """A handle of the library, and calls on it that raise what goes wrong."""

    def __init__(self, lib: ctypes.CDLL, value: int) -> None:
        self.lib = lib
        self.value = value

    @classmethod
    def new(cls, lib: ctypes.CDLL, constructor: str, config: bytes) -> "Handle":
        """Calls a constructor of the library."""
        value = c_uint64()
        text = ctypes.create_string_buffer(4096)
        status = getattr(lib, constructor)(config, len(config), byref(value), text, len(text))
        if status != 0:
            raise error_for(status, text.value.decode(errors="replace"))
        return cls(lib, value.value)

    def call(self, function: str, *arguments: Any) -> None:
        """Calls a function with the handle first."""
        if _forked:
            check_fork()
        status = getattr(self.lib, function)(self.value, *arguments)
        if status != 0:
            self.fail(status)

    def fail(self, status: int) -> None:
        """Raises the error of a status."""
        text = ctypes.create_string_buffer(4096)
        self.lib.sluice_last_error(self.value, text, len(text), None)
        raise error_for(status, text.value.decode(errors="replace"))

    def text(self, function: str) -> str:
        """Calls a function that writes a text of any size."""
        needed = c_size_t()
        self.call(function, None, 0, byref(needed))
        buffer = ctypes.create_string_buffer(needed.value)
        self.call(function, buffer, len(buffer), byref(needed))
        return buffer.value.decode(errors="replace")

    def free(self) -> None:
        """Frees the handle, once. In a child of fork nothing is freed."""
        value, self.value = self.value, 0
        if value and not _forked:
            status = self.lib.sluice_free(value)
            if status != 0:
                raise error_for(status, "the recording is not complete")


_Self = TypeVar("_Self", bound="Owner")


class Owner:
    """Holds a handle, which ends at :meth:`close`, at the end of a ``with``
    block, or when the owner is collected."""

    _handle: Handle

    def close(self) -> None:
        """Gives everything back."""
        self._handle.free()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            try:
                self._handle.free()
            except SluiceError:
                pass
