"""Sluice's scheduler core for engines in Python, through libsluice.

:class:`Scheduler` is the scheduler with its cache, :class:`Dispatcher` the
choice of device graphs alone, :mod:`sluice.vllm` a scheduler of vLLM's shape.
Nothing but the standard library is needed; arrays of plans are NumPy arrays
where NumPy is there.

The library runs a Go runtime, which does not survive ``fork()``: start worker
processes with ``spawn``, or before the library is loaded. In a forked child
every call raises :class:`ForkedError`.
"""

from .enums import (
    Captured,
    Cause,
    EventKind,
    Finish,
    Grammar,
    KvEventKind,
    Lookup,
    Mode,
    Pause,
    QueueKind,
    RefusalReason,
    RequestStatus,
    Route,
    RowClass,
    RowKind,
    Status,
    Stop,
    TransferKind,
    TurnEnd,
    Wait,
)
from .errors import AbsentError, BusyError, ConfigError, ForkedError, HandleError, PlanError, RequestError, ResultError, SluiceError, UnknownError
from .graphs import Classified, Dispatcher
from .plan import Decision, GraphKey, Load, Plan, Refusal, Transfer
from .scheduler import ASK, NEVER, NOTHING, UNKNOWN_TOKEN, Event, Info, KvEvent, Namespace, Offer, Output, Replayed, Scheduler, agree, replay, slot

__all__ = [name for name in globals() if not name.startswith("_") and name not in ("enums", "errors", "graphs", "plan", "scheduler")]
