"""One step: the arrays of a plan, read where the scheduler wrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Optional

from . import _structs
from ._arrays import view
from .enums import Finish, Mode, RefusalReason, RowKind, TransferKind, Wait
from .errors import PlanError

if TYPE_CHECKING:
    from .scheduler import Scheduler


class GraphKey(NamedTuple):
    """A captured graph."""

    mode: Mode
    tokens: int
    reqs: int
    uniform: int
    bound: int
    lora: int


class Decision(NamedTuple):
    """How a step runs: ``sluice_decision_t``. ``reason`` is its name."""

    mode: Mode
    reason: str
    tokens: int
    reqs: int
    padded_tokens: int
    padded_reqs: int
    uniform: int
    key_id: int
    key: GraphKey
    tails: int
    padded_tails: int


class Refusal(NamedTuple):
    """Why an append attempt was refused."""

    reason: RefusalReason
    prompt_tokens: int
    cached_tokens: int


class Load(NamedTuple):
    """A load that begins in a step: the tokens [start, end) of the request.
    ``blocks`` is the whole table per KV group of an asynchronous one, else
    empty."""

    request: int
    start: int
    end: int
    asynchronous: bool
    blocks: "list[list[int]]"


class Transfer(NamedTuple):
    """A save or a send to begin: blocks per KV group that hold ``tokens`` tokens."""

    kind: TransferKind
    request: int
    tokens: int
    blocks: "list[list[int]]"


def key_of(c: Any) -> GraphKey:
    """A graph's key out of C."""
    return GraphKey(Mode(c.mode), c.tokens, c.reqs, c.uniform, c.bound, c.lora)


def decision_of(c: Any, reason: str) -> Decision:
    """A decision out of C."""
    return Decision(Mode(c.mode), reason, c.tokens, c.reqs, c.padded_tokens, c.padded_reqs, c.uniform, c.key_id, key_of(c.key), c.tails, c.padded_tails)


def transfers_of(c: Any) -> "list[Transfer]":
    """Transfers out of C, copied."""
    out = []
    for i in range(c.size):
        blocks = []
        for g in range(c.groups):
            owner = i * c.groups + g
            blocks.append(c.blocks[c.blocks_at[owner] : c.blocks_at[owner + 1]])
        out.append(Transfer(TransferKind(c.kinds[i]), c.requests[i], c.tokens[i], blocks))
    return out


class Plan:
    """One step, valid until it is applied.

    The arrays are views of C memory: NumPy arrays where NumPy is there, else
    memoryviews, read-only, one entry per row unless said otherwise. Reading one
    after the plan was applied raises :class:`PlanError`; a view that was kept
    from before shows whatever is there by then, and must not be touched after
    the scheduler was closed.

    ``requests``, ``kinds``, ``scheduled``, ``drafts``, ``placeholders``,
    ``computed``, ``prefill``, ``outputs``, ``samples``, ``local_hits``,
    ``external_hits`` and ``verdicts`` (empty without graphs) are as
    ``sluice_plan_t`` says.
    """

    _ROWS = frozenset(
        (
            "requests",
            "kinds",
            "scheduled",
            "drafts",
            "placeholders",
            "computed",
            "prefill",
            "outputs",
            "samples",
            "local_hits",
            "external_hits",
            "verdicts",
        )
    )

    def __init__(self, owner: Scheduler, c: _structs.Plan) -> None:
        self._owner = owner
        self._c: Optional[_structs.Plan] = c
        self.seq: int = c.seq
        """Number of the plan, from 1, without gaps."""
        self.rows: int = c.rows
        self.groups: int = c.groups
        """KV groups."""

    @property
    def c(self) -> _structs.Plan:
        """The structure of C."""
        if self._c is None:
            raise PlanError(0, f"plan {self.seq} was applied: its memory serves another")
        return self._c

    def _close(self) -> None:
        self._c = None

    def __len__(self) -> int:
        return self.rows

    def __getattr__(self, name: str) -> Any:
        if name in Plan._ROWS:
            return view(getattr(self.c, name), self.rows)
        raise AttributeError(name)

    @property
    def now(self) -> int:
        """The time that was given to ``plan``, in nanoseconds."""
        return self.c.now

    @property
    def applied(self) -> int:
        """Number of the last plan that was applied when this one was made."""
        return self.c.applied

    @property
    def total(self) -> int:
        """Tokens of all rows."""
        return self.c.total

    @property
    def free(self) -> int:
        """Blocks that are free or evictable after planning."""
        return self.c.free

    @property
    def next_drafts(self) -> int:
        """Drafts per row to propose for the next plan."""
        return self.c.next_drafts

    @property
    def waits(self) -> Wait:
        """What a plan without rows waits for."""
        return Wait(self.c.waits)

    @property
    def inputs(self) -> Any:
        """Token ids of all rows; row i has ``inputs[inputs_at[i]:inputs_at[i+1]]``."""
        return view(self.c.inputs, self.c.inputs_at[self.rows])

    @property
    def inputs_at(self) -> Any:
        """Where each row's inputs begin; one entry more than rows."""
        return view(self.c.inputs_at, self.rows + 1)

    def input(self, row: int) -> Any:
        """Token ids of a row, from position ``computed[row]`` on."""
        c = self.c
        return self.inputs[c.inputs_at[row] : c.inputs_at[row + 1]]

    def known(self, row: int) -> Any:
        """All known tokens of a new row, where resumed requests are reported as new."""
        c = self.c
        return view(c.known, c.known_at[self.rows])[c.known_at[row] : c.known_at[row + 1]]

    @property
    def blocks(self) -> Any:
        """Changed blocks of all rows and groups; see :meth:`table`."""
        return view(self.c.blocks, self.c.blocks_at[self.rows * self.groups])

    def table(self, row: int, group: int = 0) -> "tuple[int, Any]":
        """What changed of a row's block table: a position, and the blocks from it on."""
        c, owner = self.c, row * self.groups + group
        return c.table_from[owner], self.blocks[c.blocks_at[owner] : c.blocks_at[owner + 1]]

    @property
    def common_prefix(self) -> Any:
        """Per KV group, the leading blocks that all tables have in common."""
        return view(self.c.common_prefix, self.groups)

    @property
    def graph(self) -> Decision:
        """The graph that may replay the step; ``key_id`` is -1 if none."""
        c = self.c.graph
        return decision_of(c, self._owner.text_of_reason(c.reason))

    @property
    def grammar_rows(self) -> Any:
        """Rows whose logits need a grammar's mask."""
        return view(self.c.grammar_rows, self.c.grammar_size)

    @property
    def grammar_waits(self) -> Any:
        """1 where that mask depends on a token in flight."""
        return view(self.c.grammar_waits, self.c.grammar_size)

    def loads(self) -> "list[Load]":
        """Loads that begin in this step."""
        c = self.c
        out = []
        for i in range(c.loads_size):
            blocks = []
            for g in range(self.groups):
                owner = i * self.groups + g
                blocks.append(c.load_blocks[c.load_blocks_at[owner] : c.load_blocks_at[owner + 1]])
            out.append(Load(c.loads[i], c.loads_from[i], c.loads_to[i], c.loads_async[i] == 1, blocks))
        return out

    def pending(self) -> "list[tuple[int, int]]":
        """Requests whose lookup waits for an offer, and how many of their tokens are cached here."""
        c = self.c
        return [(c.pending[i], c.pending_local[i]) for i in range(c.pending_size)]

    def finished(self) -> "list[tuple[int, Finish]]":
        """Requests that ended since the previous plan."""
        c = self.c
        return [(c.finished[i], Finish(c.finished_reasons[i])) for i in range(c.finished_size)]

    def preempted(self) -> "list[tuple[int, bool]]":
        """Requests that were preempted since the previous plan, and whether their KV is saved."""
        c = self.c
        return [(c.preempted[i], c.preempted_saved[i] == 1) for i in range(c.preempted_size)]

    def rolled_back(self) -> "list[int]":
        """Preempted requests that had a row in this plan before."""
        return self.c.rolled_back[: self.c.rolled_back_size]

    def refused(self) -> "list[tuple[int, Refusal]]":
        """Append attempts that this plan ends."""
        c = self.c
        return [(c.refused[i], refusal_of(c.refusals[i])) for i in range(c.refused_size)]

    def released(self) -> "list[int]":
        """Requests that had ended before and whose blocks have returned."""
        return self.c.released[: self.c.released_size]

    def transfers(self) -> "list[Transfer]":
        """Saves and sends to begin, saves before the rows run."""
        return transfers_of(self.c.transfers)

    def row_kinds(self) -> Iterator[RowKind]:
        """The kind of each row."""
        return (RowKind(int(k)) for k in self.kinds)


def refusal_of(c: Any) -> Refusal:
    """A refusal out of C."""
    return Refusal(RefusalReason(c.reason), c.prompt_tokens, c.cached_tokens)
