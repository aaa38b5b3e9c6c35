"""The choice of device graphs alone, for callers with a scheduler of their own."""

from __future__ import annotations

from ctypes import byref, c_size_t, c_uint8, sizeof
from typing import Any, Iterable, NamedTuple, Optional

from . import _structs
from ._arrays import Tokens, ints
from ._library import Handle, Owner, load
from .enums import Captured, RowClass, TextKind
from .plan import Decision, GraphKey, decision_of, key_of
from .scheduler import Config, encode_config

ENCODER_INPUTS = 1
FORCED_EAGER = 2
CASCADE = 4


class Classified(NamedTuple):
    """A verdict per row, and the decision that follows."""

    verdicts: bytes
    decision: Decision


class Dispatcher(Owner):
    """Says which captured graph a batch may replay. ``config`` has the keys of
    graphs.Config and ``Captured``."""

    def __init__(self, config: Config, *, library: Optional[str] = None) -> None:
        self._lib = load(library)
        self._handle = Handle.new(self._lib, "sluice_graphs_new", encode_config(config))

    def classify(
        self,
        scheduled: Tokens,
        computed: Tokens,
        prefill: Tokens,
        drafts: Optional[Tokens] = None,
        placeholders: Optional[Tokens] = None,
        *,
        flags: int = 0,
        loras: int = 0,
        trimmed_tokens: int = 0,
        rank_tokens: int = 0,
        fewer_drafts: int = 0,
    ) -> Classified:
        """Classifies a batch, one entry per row in each array. Without drafts
        there are none."""
        n = len(scheduled)
        b = _structs.Batch(struct_size=sizeof(_structs.Batch), flags=flags, size=n, loras=loras)
        b.trimmed_tokens, b.rank_tokens, b.fewer_drafts = trimmed_tokens, rank_tokens, fewer_drafts
        zeros = [0] * n
        arrays: "dict[str, Any]" = {
            "scheduled": scheduled,
            "drafts": zeros if drafts is None else drafts,
            "placeholders": zeros if placeholders is None else placeholders,
            "computed": computed,
            "prefill": prefill,
        }
        for name, values in arrays.items():
            pointer, size = ints(values)
            if size != n:
                raise ValueError(f"{name} has {size} entries, scheduled has {n}")
            setattr(b, name, pointer)
        verdicts = (c_uint8 * n)()
        out = _structs.Decision()
        self._handle.call("sluice_classify", byref(b), verdicts, byref(out))
        reason = self._lib.sluice_text(TextKind.REASON, out.reason).decode()
        return Classified(bytes(verdicts), decision_of(out, reason))

    def keys(self) -> "list[GraphKey]":
        """All graphs in the order of capture; a ``key_id`` is an index into them."""
        size = c_size_t()
        self._handle.call("sluice_graph_keys", None, 0, byref(size))
        keys = (_structs.GraphKey * size.value)()
        self._handle.call("sluice_graph_keys", keys, len(keys), byref(size))
        return [key_of(k) for k in keys]

    def set_captured(self, captured: Captured, marked: Iterable[int] = ()) -> None:
        """Which graphs exist from now on."""
        pointer, size = ints(list(marked))
        self._handle.call("sluice_set_captured", captured, pointer, size)

    def verdict_class(self, verdict: int) -> RowClass:
        """The class of a verdict."""
        return RowClass(self._lib.sluice_verdict_class(verdict))

    def verdict_text(self, verdict: int) -> str:
        """Class and cause of a verdict in words."""
        return self._lib.sluice_text(TextKind.VERDICT, verdict).decode()
