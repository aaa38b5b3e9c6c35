"""What goes wrong, by the status of the call."""

from .enums import Status


class SluiceError(Exception):
    """A call that failed. ``status`` is a :class:`sluice.Status`, or 0 where it
    was this package that refused."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class HandleError(SluiceError):
    """The object was closed."""


class BusyError(SluiceError):
    """Another thread is using the object."""


class ForkedError(SluiceError):
    """The library was loaded before ``fork``."""

    def __init__(self, text: str, status: int = Status.FORKED) -> None:
        super().__init__(status, text)


class ConfigError(SluiceError):
    """The configuration has a fault."""


class RequestError(SluiceError):
    """The request has a fault, is too long, or a live one has its name."""


class UnknownError(SluiceError, KeyError):
    """No live request has the id, no session the name."""

    def __str__(self) -> str:
        return str(self.args[0])


class PlanError(SluiceError):
    """The plan was applied already, is out of order, or is none; or too many are
    in flight."""


class ResultError(SluiceError):
    """The result does not fit its plan."""


class AbsentError(SluiceError):
    """The object was made without what the call is about."""


_CLASSES = {
    Status.HANDLE: HandleError,
    Status.BUSY: BusyError,
    Status.CONFIG: ConfigError,
    Status.REQUEST: RequestError,
    Status.DUPLICATE: RequestError,
    Status.TOO_LONG: RequestError,
    Status.NEVER_FITS: RequestError,
    Status.UNKNOWN: UnknownError,
    Status.PLANS: PlanError,
    Status.STALE_PLAN: PlanError,
    Status.FOREIGN_PLAN: PlanError,
    Status.PLAN_ORDER: PlanError,
    Status.RESULT: ResultError,
    Status.ABSENT: AbsentError,
}


def error_for(status: int, text: str) -> SluiceError:
    """The exception of a status."""
    if status == Status.FORKED:
        return ForkedError(text)
    return _CLASSES.get(status, SluiceError)(status, text)  # type: ignore[call-overload]
