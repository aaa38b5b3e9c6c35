"""The enumerations of sluice.h, without the prefixes that C needs."""

from enum import IntEnum


class Status(IntEnum):
    """``sluice_status``."""

    OK = 0
    ARGUMENT = 1
    SIZE = 2
    HANDLE = 3
    BUSY = 4
    FORKED = 5
    CONFIG = 6
    REQUEST = 7
    DUPLICATE = 8
    UNKNOWN = 9
    TOO_LONG = 10
    NEVER_FITS = 11
    PLANS = 12
    STALE_PLAN = 13
    FOREIGN_PLAN = 14
    PLAN_ORDER = 15
    RESULT = 16
    CACHE_BUSY = 17
    ABSENT = 18
    IO = 19
    BROKEN = 20


class TextKind(IntEnum):
    """``sluice_text_kind``."""

    FINISH = 0
    REFUSAL = 1
    REQUEST = 2
    WAIT = 3
    MODE = 4
    REASON = 5
    VERDICT = 6
    CAUSE = 7


class Route(IntEnum):
    """``sluice_route``."""

    LOCAL = 0
    REMOTE_PREFILL = 1
    APPEND_PREFILL = 2


class Grammar(IntEnum):
    """``sluice_grammar``."""

    NO_GRAMMAR = 0
    PENDING = 1
    READY = 2
    FAILED = 3


class TurnEnd(IntEnum):
    """``sluice_turn_end``."""

    END_OF_TURN = 0
    END_IN_TOOL = 1
    END_OF_SESSION = 2


class Lookup(IntEnum):
    """``sluice_lookup``."""

    DEFAULT = 0
    NONE = 1
    ASK = 2
    OFFER = 3


class Finish(IntEnum):
    """``sluice_finish``."""

    NOT_FINISHED = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    ERROR = 4
    REFUSED = 5
    REPETITION = 6
    RECOMPUTED = 7


class RequestStatus(IntEnum):
    """``sluice_request_status``."""

    WAITING = 0
    WAITING_GRAMMAR = 1
    WAITING_KV = 2
    WAITING_INPUT = 3
    RUNNING = 4
    PREEMPTED = 5
    FINISHED = 6


class EventKind(IntEnum):
    """``sluice_event_kind``."""

    RECEIVED = 1
    FAILED = 2
    SENT = 3
    SAVED = 4


class TransferKind(IntEnum):
    """``sluice_transfer_kind``."""

    SEND = 1
    SAVE = 2


class Mode(IntEnum):
    """``sluice_mode``."""

    NONE = 0
    PIECEWISE = 1
    FULL = 2


class RowClass(IntEnum):
    """``sluice_class``."""

    DECODE = 0
    TAIL = 1
    PREFILL = 2
    MALFORMED = 3


class Captured(IntEnum):
    """``sluice_captured``."""

    NOTHING_CAPTURED = 0
    SAMPLING = 1
    ALL_CAPTURED = 2
    PARTLY_CAPTURED = 3


class RowKind(IntEnum):
    """``sluice_row_kind``."""

    NEW = 0
    RESUMED = 1
    RUNNING = 2


class Wait(IntEnum):
    """``sluice_wait``."""

    NOTHING = 0
    STEP = 1
    LOAD = 2
    LOOKUP = 3
    RELEASE = 4
    GRAMMAR = 5
    INPUT = 6
    RESUME = 7


class RefusalReason(IntEnum):
    """``sluice_refusal_reason``."""

    NOT_REFUSED = 0
    NO_PREFIX = 1
    BELOW_MIN_PREFIX = 2
    SUFFIX_TOO_LONG = 3
    REFUSED_BUSY = 4
    DRAINING = 5
    BELOW_THRESHOLD = 6


class Cause(IntEnum):
    """``sluice_cause``."""

    NONE = 0
    LOAD_FAILED = 1
    LOAD_TIMEOUT = 2
    LOOKUP_TIMEOUT = 3
    GRAMMAR = 4
    GRAMMAR_TIMEOUT = 5
    INPUT_TIMEOUT = 6
    OTHER = 7


class Stop(IntEnum):
    """``sluice_stop``."""

    NONE = 0
    EOS = 1
    ID = 2
    CALLER = 3


class Pause(IntEnum):
    """``sluice_pause``."""

    UNPAUSED = 0
    PAUSE_NEW = 1
    PAUSE_ALL = 2


class KvEventKind(IntEnum):
    """``sluice_kv_event_kind``."""

    STORED = 0
    REMOVED = 1
    CLEARED = 2


class QueueKind(IntEnum):
    """``sluice_queue_kind``."""

    RUNNING = 0
    WAITING = 1
    SKIPPED = 2
