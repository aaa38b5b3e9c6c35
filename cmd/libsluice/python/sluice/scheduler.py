"""The scheduler and its cache."""

from __future__ import annotations

import json
from ctypes import POINTER, byref, c_int32, c_int64, c_size_t, c_uint64, create_string_buffer, sizeof
from typing import Any, Iterable, Mapping, NamedTuple, Optional, Union

from . import _structs
from ._arrays import Tokens, ints
from ._library import Handle, Owner, check_fork, load
from .enums import Cause, EventKind, Finish, Grammar, KvEventKind, Lookup, Pause, QueueKind, RequestStatus, Route, Status, Stop, TextKind, TurnEnd
from .errors import error_for
from .plan import Plan, Refusal, Transfer, refusal_of, transfers_of

NEVER = 2**63 - 1
"""Later than every other time."""

UNKNOWN_TOKEN = -1
"""A token id that is not known yet when a plan is made."""

Config = Union[str, bytes, Mapping[str, Any]]


def slot(request: int) -> int:
    """The dense index of a request: no two live ones share it."""
    return request & 0xFFFFFFFF


class Namespace(NamedTuple):
    """Only requests of equal namespaces share KV; each field counts by itself."""

    tenant: str = ""
    salt: str = ""
    lora_name: str = ""
    lora_id: int = 0
    media: str = ""
    variant: str = ""


class Offer(NamedTuple):
    """What can be loaded for a request from outside the device: the KV of its
    first ``tokens`` tokens, those in the cache included, of which those before
    ``beyond`` cannot be loaded."""

    lookup: Lookup
    tokens: int = 0
    asynchronous: bool = True
    repeat: bool = False
    beyond: int = 0
    timeout: int = 0

    def _c(self) -> _structs.Offer:
        return _structs.Offer(sizeof(_structs.Offer), self.lookup, self.tokens, int(self.asynchronous), int(self.repeat), self.beyond, self.timeout)


NOTHING = Offer(Lookup.NONE)
"""Nothing can be loaded."""

ASK = Offer(Lookup.ASK)
"""Not known yet: the request waits."""


class Event(NamedTuple):
    """What happened to a transfer."""

    kind: EventKind
    request: int = 0
    worker: int = 0
    blocks: "tuple[int, ...]" = ()


class Output(NamedTuple):
    """What one request has gained by a step."""

    request: int
    tokens: "list[int]"
    finish: Finish
    stop: Stop
    first: bool
    cause: Cause
    stop_token: int
    cached: int
    external: int
    refusal: Optional[Refusal]


class Info(NamedTuple):
    """What a configuration came to."""

    blocks: int
    block_size: int
    groups: int
    max_len: int
    max_rows: int
    max_tokens: int
    in_flight: int
    drafts: int
    graph_keys: int


class KvEvent(NamedTuple):
    """A change of what is cached."""

    kind: KvEventKind
    group: int
    hashes: "list[bytes]"
    parent: Optional[bytes]
    tokens: "list[int]"
    block_size: int
    medium: str
    namespace: Namespace


class Replayed(NamedTuple):
    """What a replay found; ``divergence`` is empty if all was equal."""

    lines: int
    plans: int
    outputs: int
    divergence: str


def encode_config(config: Config) -> bytes:
    """A configuration as JSON."""
    if isinstance(config, bytes):
        return config
    if isinstance(config, str):
        return config.encode()
    return json.dumps(config).encode()


def _text(s: str) -> Optional[bytes]:
    if "\0" in s:
        raise ValueError(f"{s!r} has a zero byte inside")
    return s.encode() if s else None


class Scheduler(Owner):
    """A cache and a scheduler over it.

    ``config`` has the keys of ``sluice_new``: ``Cache``, ``Scheduler``,
    ``Graphs``, ``Connector``, ``Record``, each with Go's keys. One thread uses a
    scheduler at a time; a second one gets :class:`BusyError`. It is closed by
    :meth:`close`, at the end of a ``with`` block, or when it is collected.

        with Scheduler({"Cache": {"Blocks": 1000}, "Scheduler": {"MaxModelLen": 4096}}) as s:
            s.add("r1", prompt, max_tokens=16)
            while s.has_work():
                plan = s.plan(time.monotonic_ns())
                outputs = s.apply(plan, execute(plan))
    """

    def __init__(self, config: Config, *, library: Optional[str] = None) -> None:
        self._lib = load(library)
        self._handle = Handle.new(self._lib, "sluice_new", encode_config(config))
        self._flight: "dict[int, Plan]" = {}
        self._reasons: "dict[int, str]" = {}

    # -- life

    def close(self) -> None:
        """Gives everything back. Views of plans must not be touched any more."""
        for plan in self._flight.values():
            plan._close()
        self._flight.clear()
        super().close()

    # -- requests

    def add(
        self,
        name: str,
        prompt: Tokens,
        *,
        max_tokens: int,
        min_tokens: int = 0,
        eos: Optional[Tokens] = None,
        stop: Optional[Tokens] = None,
        repetition: "tuple[int, int, int]" = (0, 0, 0),
        priority: int = 0,
        arrival: int = 0,
        deadline: int = 0,
        route: Route = Route.LOCAL,
        tenant: str = "",
        session: str = "",
        namespace: Namespace = Namespace(),
        turn_end: TurnEnd = TurnEnd.END_OF_TURN,
        remote_eta: int = 0,
        hit_threshold: float = 0.0,
        grammar: Grammar = Grammar.NO_GRAMMAR,
        skip_cache_read: bool = False,
        resumable: bool = False,
        hold_at_end: bool = False,
        offer: Optional[Offer] = None,
    ) -> int:
        """Takes a request in and returns its id: ``sluice_add``. ``repetition``
        is shortest pattern, longest pattern and count. Times are nanoseconds."""
        r = _structs.Request(struct_size=sizeof(_structs.Request))
        r.flags = int(skip_cache_read) | int(resumable) << 1 | int(hold_at_end) << 2
        r.name = _text(name)
        r.prompt, r.prompt_size = ints(prompt)
        r.eos, r.eos_size = ints(eos)
        r.stop, r.stop_size = ints(stop)
        r.route, r.grammar, r.turn_end = route, grammar, turn_end
        r.tenant, r.session = _text(tenant), _text(session)
        r.space_tenant, r.salt = _text(namespace.tenant), _text(namespace.salt)
        r.lora_name, r.lora_id = _text(namespace.lora_name), namespace.lora_id
        r.media, r.variant = _text(namespace.media), _text(namespace.variant)
        r.max_tokens, r.min_tokens = max_tokens, min_tokens
        r.repeat_min, r.repeat_max, r.repeat_count = repetition
        r.priority, r.arrival, r.deadline = priority, arrival, deadline
        r.remote_eta, r.hit_threshold = remote_eta, hit_threshold
        if offer is not None:
            r.offer = offer._c()
        request = c_uint64()
        self._handle.call("sluice_add", byref(r), byref(request))
        return request.value

    def abort(self, request: int) -> None:
        """Ends a request in whatever state it is; nothing more is output for it."""
        self._handle.call("sluice_abort", request)

    def finish(self, request: int, reason: Finish) -> None:
        """Ends a request for a reason that the caller found, e.g. a stop string."""
        self._handle.call("sluice_finish", request, reason)

    def find(self, name: str) -> Optional[int]:
        """The live request of a name."""
        request = c_uint64()
        check_fork()
        status = self._lib.sluice_find(self._handle.value, name.encode(), byref(request))
        if status == Status.UNKNOWN:
            return None
        if status != 0:
            self._handle.fail(status)
        return request.value

    def state(self, request: int) -> RequestStatus:
        """Where a request is. :class:`UnknownError` if it has ended and holds nothing."""
        state = c_int32()
        self._handle.call("sluice_request_state", request, byref(state))
        return RequestStatus(state.value)

    def set_grammar(self, request: int, grammar: Grammar) -> None:
        """What became of a request's grammar."""
        self._handle.call("sluice_set_grammar", request, grammar)

    def end_turn(self, session: str, turn_end: TurnEnd) -> None:
        """What the client of a session does after its last turn."""
        self._handle.call("sluice_end_turn", session.encode(), turn_end)

    # -- transfers

    def offer(self, request: int, offer: Offer) -> None:
        """Answers a request's lookups from the next plan on."""
        self._handle.call("sluice_offer", request, byref(offer._c()))

    def deliver(self, events: Iterable[Event]) -> None:
        """Hands over what happened to transfers, in order."""
        events = list(events)
        array = (_structs.Event * len(events))()
        kept = []
        for c, ev in zip(array, events):
            blocks, n = ints(ev.blocks if ev.blocks else None)
            kept.append(blocks)  # until the call is over
            c.request, c.kind, c.worker, c.blocks, c.blocks_size = ev.request, ev.kind, ev.worker, blocks, n
        self._handle.call("sluice_deliver", array, len(events))

    # -- steps

    def plan(self, now: int) -> Plan:
        """Makes one plan. :class:`PlanError` while as many as configured are in flight."""
        pointer = POINTER(_structs.Plan)()
        self._handle.call("sluice_plan", now, byref(pointer))
        plan = Plan(self, pointer.contents)
        self._flight[plan.seq] = plan
        return plan

    def apply(
        self,
        plan: Union[Plan, int],
        tokens: Tokens = (),
        *,
        counts: Optional[Tokens] = None,
        drafts: Optional[Tokens] = None,
        draft_counts: Optional[Tokens] = None,
        grammar_errors: Optional[Tokens] = None,
        failed: bool = False,
        elapsed: int = 0,
    ) -> "list[Output]":
        """Takes the result of the oldest plan in flight: the tokens sampled, row
        after row. Saves and sends to begin before the outputs leave are in
        :attr:`transfers` afterwards."""
        seq = plan if isinstance(plan, int) else plan.seq
        r = _structs.Result(struct_size=sizeof(_structs.Result), failed=int(failed), elapsed=elapsed)
        r.tokens, r.tokens_size = ints(tokens)
        r.counts, r.counts_size = ints(counts)
        r.drafts, r.drafts_size = ints(drafts)
        r.draft_counts, r.draft_counts_size = ints(draft_counts)
        r.grammar_errors, r.grammar_errors_size = ints(grammar_errors)
        pointer = POINTER(_structs.Outputs)()
        self._handle.call("sluice_apply", seq, byref(r), byref(pointer))
        if done := self._flight.pop(seq, None):
            done._close()
        outs = pointer.contents
        self.transfers: "list[Transfer]" = transfers_of(outs.transfers)
        return [self._output(outs, outs.outputs[i]) for i in range(outs.size)]

    @staticmethod
    def _output(outs: _structs.Outputs, o: Any) -> Output:
        refusal = refusal_of(o.refusal) if o.finish == Finish.REFUSED else None
        return Output(
            o.request,
            outs.tokens[o.tokens_at : o.tokens_at + o.tokens_size],
            Finish(o.finish),
            Stop(o.stop),
            o.first == 1,
            Cause(o.cause),
            o.stop_token,
            o.cached,
            o.external,
            refusal,
        )

    def next_deadline(self) -> int:
        """When ``plan`` must be called although nothing arrives; ``NEVER`` if never."""
        at = c_int64()
        self._handle.call("sluice_next_deadline", byref(at))
        return at.value

    def has_work(self) -> bool:
        """Whether ``plan`` is worth calling now."""
        work = c_int32()
        self._handle.call("sluice_has_work", byref(work))
        return work.value == 1

    def encode(self, plan: Plan) -> bytes:
        """The binary form of a plan in flight."""
        needed = c_size_t()
        check_fork()
        status = self._lib.sluice_encode_plan(self._handle.value, plan.seq, None, 0, byref(needed))
        if status != Status.SIZE:
            self._handle.fail(status)
        data = create_string_buffer(needed.value)
        self._handle.call("sluice_encode_plan", plan.seq, data, len(data), byref(needed))
        return data.raw

    # -- control

    def set_pause(self, pause: Pause) -> None:
        """What is left alone from the next plan on."""
        self._handle.call("sluice_set_pause", pause)

    def set_throttle(self, throttle: bool) -> None:
        """Whether prompts hold back while somebody decodes."""
        self._handle.call("sluice_set_throttle", int(throttle))

    def drain(self) -> None:
        """Refuses every append attempt that is not admitted yet."""
        self._handle.call("sluice_drain")

    def reset_cache(self, *, preempt: bool = False) -> bool:
        """Forgets every cached prefix; False while requests hold blocks."""
        check_fork()
        status = self._lib.sluice_reset_cache(self._handle.value, int(preempt))
        if status == Status.CACHE_BUSY:
            return False
        if status != 0:
            self._handle.fail(status)
        return True

    def propose(self) -> "tuple[int, bool]":
        """Append tokens that this rank can bear in the next step, and whether it has some."""
        p = _structs.Proposal()
        self._handle.call("sluice_propose", byref(p))
        return p.cap, p.wants == 1

    def set_agreement(self, cap: int, chunk: bool) -> None:
        """Binds the next plan to what the ranks have agreed on; see :func:`agree`."""
        self._handle.call("sluice_set_agreement", byref(_structs.Agreement(cap, int(chunk))))

    # -- what is there

    def info(self) -> Info:
        """What the configuration came to, with its defaults."""
        c = _structs.Info(struct_size=sizeof(_structs.Info))
        self._handle.call("sluice_info", byref(c))
        return Info(*(getattr(c, f) for f in Info._fields))

    def stats(self) -> "dict[str, Any]":
        """Counters and gauges by the names of ``sluice_stats_t``."""
        c = _structs.Stats(struct_size=sizeof(_structs.Stats))
        self._handle.call("sluice_stats", byref(c))
        values = {name: getattr(c, name) for name, _ in c._fields_ if name not in ("struct_size", "reserved")}
        return {k: list(v) if k in ("finished", "refused") else v for k, v in values.items()}

    def queue(self, queue: QueueKind) -> "list[int]":
        """The requests of a queue, in order."""
        size = c_size_t()
        self._handle.call("sluice_queue", queue, None, 0, byref(size))
        ids = (c_uint64 * size.value)()
        self._handle.call("sluice_queue", queue, ids, len(ids), byref(size))
        return list(ids)

    def take_events(self) -> "list[KvEvent]":
        """Takes the changes of what is cached that may be told."""
        pointer = POINTER(_structs.KvEvents)()
        self._handle.call("sluice_take_events", byref(pointer))
        c = pointer.contents
        return [_event(c, i) for i in range(c.size)]

    def dump(self) -> str:
        """The state of every request as text."""
        return self._handle.text("sluice_dump")

    def check(self) -> None:
        """Checks every invariant. For tests: it takes long."""
        self._handle.call("sluice_check")

    def flush_recording(self) -> None:
        """Writes what was recorded so far to the file."""
        self._handle.call("sluice_flush_recording")

    def text_of_reason(self, reason: int) -> str:
        """The name of a reason why a step did not run as FULL."""
        if reason not in self._reasons:
            self._reasons[reason] = self._lib.sluice_text(TextKind.REASON, reason).decode()
        return self._reasons[reason]


def _event(c: Any, i: int) -> KvEvent:
    size = c.hash_size
    hashes = bytes(c.hashes[c.hashes_at[i] * size : c.hashes_at[i + 1] * size])
    texts = _texts(c, c.texts_at[i], c.texts_at[i + 1])
    return KvEvent(
        KvEventKind(c.kinds[i]),
        c.groups[i],
        [hashes[k : k + size] for k in range(0, len(hashes), size)],
        bytes(c.parents[i * size : (i + 1) * size]) if c.has_parent[i] else None,
        c.tokens[c.tokens_at[i] : c.tokens_at[i + 1]],
        c.block_size,
        texts[0],
        Namespace(texts[1], texts[2], texts[3], c.lora_ids[i], texts[4], texts[5]),
    )


def _texts(c: Any, start: int, end: int) -> "list[str]":
    data = bytes(c.texts[start:end])
    return [t.decode(errors="replace") for t in data.split(b"\0")[:-1]]


def agree(proposals: "Iterable[tuple[int, bool]]", *, library: Optional[str] = None) -> "tuple[int, bool]":
    """Joins the proposals of all ranks that step together."""
    lib = load(library)
    given = list(proposals)
    array = (_structs.Proposal * len(given))(*((cap, int(wants)) for cap, wants in given))
    out = _structs.Agreement()
    status = lib.sluice_agree(array, len(given), byref(out))
    if status != 0:
        raise error_for(status, "a proposal is out of range")
    return out.cap, out.chunk == 1


def replay(path: str, *, library: Optional[str] = None) -> Replayed:
    """Tells a new scheduler what a recording says, and compares every plan and output."""
    lib = load(library)
    c = _structs.Replayed(struct_size=sizeof(_structs.Replayed))
    text = create_string_buffer(1 << 16)
    status = lib.sluice_replay(path.encode(), byref(c), text, len(text))
    said = text.value.decode(errors="replace")
    if status != 0:
        raise error_for(status, said)
    return Replayed(c.lines, c.plans, c.outputs, said if c.diverged else "")
