"""A scheduler of vLLM's shape over this core.

:class:`SluiceScheduler` has the methods that vLLM's engine calls on what
``--scheduler-cls`` names; plans become ``SchedulerOutput``, results come back
through ``update_from_output``. A connector of vLLM's is asked and told on its
scheduler's side as its contract says.

What differs from vLLM's own scheduler:

- A lookup that a connector answers is used in the plan after the one that
  asked; where nothing else could run, that plan is made at once.
- A finished request whose connector may want to keep its blocks holds them
  until it was asked, at the end of the step; those of aborted requests return
  at once, and the connector is told without blocks.
- Speculative decoding needs asynchronous scheduling, where drafts stay with the
  executor.
- Multimodal inputs, pooling, resumable requests and encoder connectors are not
  scheduled: ``add_request`` refuses them.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Callable, Iterable, Optional, Union

from ._vllm_types import Blocks, Types, build, core_config
from .enums import EventKind, Finish, Grammar, Lookup, Pause, QueueKind, RefusalReason, Route, RowKind, Stop, TransferKind
from .errors import UnknownError
from .plan import Plan, Transfer
from .scheduler import ASK, NOTHING, Event, Namespace, Offer, Output, Scheduler

_REASONS = {
    Finish.STOP: "STOP",
    Finish.LENGTH: "LENGTH",
    Finish.ABORT: "ABORT",
    Finish.ERROR: "ERROR",
    Finish.REPETITION: "REPETITION",
    Finish.REFUSED: "STOP",
    Finish.RECOMPUTED: "STOP",
}

_STATUSES = {
    Finish.STOP: "FINISHED_STOPPED",
    Finish.LENGTH: "FINISHED_LENGTH_CAPPED",
    Finish.ABORT: "FINISHED_ABORTED",
    Finish.ERROR: "FINISHED_ERROR",
    Finish.REPETITION: "FINISHED_REPETITION",
    Finish.REFUSED: "FINISHED_STOPPED",
    Finish.RECOMPUTED: "FINISHED_STOPPED",
}

_FINISHES = {
    "FINISHED_STOPPED": Finish.STOP,
    "FINISHED_LENGTH_CAPPED": Finish.LENGTH,
    "FINISHED_ERROR": Finish.ERROR,
    "FINISHED_REPETITION": Finish.REPETITION,
}


class _Live:
    """A request of vLLM's and what is kept beside it."""

    def __init__(self, request: Any, groups: int) -> None:
        self.request = request
        self.tables: "list[list[int]]" = [[] for _ in range(groups)]
        self.stepped = 0  # number of the last step with a row of it
        self.loading = False


class _Step:
    """A step under way: the plan, and what vLLM was given for it."""

    def __init__(self) -> None:
        self.plan: Optional[Plan] = None
        self.output: Any = None
        self.finished: "set[str]" = set()
        self.preempted: "set[str]" = set()


class SluiceScheduler:
    """The scheduler that vLLM's engine drives.

    ``types`` and ``connector`` are vLLM's own unless given; ``clock`` gives
    nanoseconds.
    """

    def __init__(
        self,
        vllm_config: Any,
        kv_cache_config: Any,
        structured_output_manager: Any = None,
        block_size: Optional[int] = None,
        *_: Any,
        include_finished_set: bool = False,
        log_stats: bool = False,
        types: Optional[Types] = None,
        connector: Any = None,
        clock: Callable[[], int] = time.monotonic_ns,
        **__: Any,
    ) -> None:
        self.types = types or Types.from_vllm()
        self.connector = connector
        if connector is None and getattr(vllm_config, "kv_transfer_config", None) is not None:
            self.connector = _vllm_connector(vllm_config, kv_cache_config)
        self.structured_output_manager = structured_output_manager
        self.include_finished_set = include_finished_set
        self.log_stats = log_stats
        self.core = Scheduler(core_config(vllm_config, kv_cache_config, block_size, self.connector is not None))
        self.requests: "dict[str, Any]" = {}
        self._clock = clock
        self._groups = self.core.info().groups
        self._v2 = bool(getattr(vllm_config, "use_v2_model_runner", False))
        self._drafts = self.core.info().drafts
        self._live: "dict[int, _Live]" = {}
        self._ids: "dict[str, int]" = {}
        self._steps: "deque[_Step]" = deque()
        self._count = 0
        self._grammars: "set[int]" = set()
        self._kept: "list[tuple[int, Any]]" = []  # outputs of steps that vLLM did not see
        self._untold: "set[str]" = set()
        self._leaving: "dict[int, _Live]" = {}
        self._held: "dict[int, str]" = {}
        self._ended_since: "dict[int, set[str]]" = {}
        self._pause = Pause.UNPAUSED
        self._throttled = False

    # -- requests

    def add_request(self, request: Any) -> None:
        """Takes a request in."""
        for field in ("mm_features", "pooling_params", "prompt_embeds", "resumable"):
            if getattr(request, field, None):
                raise ValueError(f"request {request.request_id}: {field} is not supported")
        sampling = request.sampling_params
        params = getattr(request, "kv_transfer_params", None) or {}
        eos = getattr(request, "eos_token_id", None)
        lora = getattr(request, "lora_request", None)
        rule = getattr(sampling, "repetition_detection", None)
        i = self.core.add(
            request.request_id,
            request.prompt_token_ids,
            max_tokens=request.max_tokens,
            min_tokens=getattr(sampling, "min_tokens", 0) or 0,
            eos=None if eos is None or getattr(sampling, "ignore_eos", False) else [eos],
            stop=sorted(getattr(sampling, "stop_token_ids", None) or ()),
            repetition=(0, 0, 0) if rule is None else (rule.min_pattern_size, rule.max_pattern_size, rule.min_count),
            priority=getattr(request, "priority", 0),
            arrival=max(int(getattr(request, "arrival_time", 0.0) * 1e9), 0),
            route=_route(params),
            session=getattr(request, "session_id", None) or "",
            namespace=Namespace(
                salt=getattr(request, "cache_salt", None) or "",
                lora_name=getattr(lora, "lora_name", "") if lora else "",
                lora_id=getattr(lora, "lora_int_id", 0) if lora else 0,
            ),
            hit_threshold=float(getattr(sampling, "cache_hit_threshold", None) or 0.0),
            grammar=self._grammar(request),
            skip_cache_read=bool(getattr(request, "skip_reading_prefix_cache", False)),
            hold_at_end=self.connector is not None,
        )
        self._live[i] = _Live(request, self._groups)
        self._ids[request.request_id] = i
        self.requests[request.request_id] = request
        if self._grammar(request) == Grammar.PENDING:
            self._grammars.add(i)
        self._tell("on_new_request", request)

    @staticmethod
    def _grammar(request: Any) -> Grammar:
        structured = getattr(request, "structured_output_request", None)
        if structured is None:
            return Grammar.NO_GRAMMAR
        grammar = getattr(structured, "grammar", None)
        if grammar is None:
            return Grammar.PENDING
        return Grammar.FAILED if isinstance(grammar, Exception) else Grammar.READY

    def finish_requests(self, request_ids: "Union[str, Iterable[str], None]", finished_status: Any) -> "list[Any]":
        """Ends requests; None means all. Returns those that really ended."""
        if request_ids is None:
            request_ids = list(self.requests)
        elif isinstance(request_ids, str):
            request_ids = [request_ids]
        reason = _FINISHES.get(getattr(finished_status, "name", ""), Finish.ABORT)
        ended = []
        for name in request_ids:
            i = self._ids.get(name)
            if i is None:
                continue
            try:
                self.core.finish(i, reason)
            except UnknownError:
                continue
            live = self._forget(i)
            live.request.status = finished_status
            if self.connector is not None:
                self._leaving[i] = live  # a send, if there is one, comes with the next plan or outputs
            ended.append(live.request)
        return ended

    def _forget(self, i: int) -> _Live:
        live = self._live.pop(i)
        name = live.request.request_id
        del self._ids[name], self.requests[name]
        self._grammars.discard(i)
        self._untold.add(name)
        if self.include_finished_set:
            self._ended_since.setdefault(getattr(live.request, "client_index", 0), set()).add(name)
        return live

    # -- steps

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """One step."""
        if throttle_prefills != self._throttled:
            self._throttled = throttle_prefills
            self.core.set_throttle(throttle_prefills)
        self._promote_grammars()
        step = _Step()
        for _ in range(8):  # answers may lead to further questions
            plan = self.core.plan(self._clock())
            self._take_up(plan, step)
            answered = self._answer(plan)
            if plan.rows or not answered or self._steps:
                break
            outs = self.core.apply(plan)
            self._kept += [self._engine_output(o) for o in outs]
            self._send(self.core.transfers)
        step.plan = plan
        self._count += 1
        step.output = self._scheduler_output(plan, step)
        self._steps.append(step)
        return step.output

    def _promote_grammars(self) -> None:
        for i in list(self._grammars):
            state = self._grammar(self._live[i].request)
            if state != Grammar.PENDING:
                self._grammars.discard(i)
                self.core.set_grammar(i, state)

    def _answer(self, plan: Plan) -> bool:
        """Asks the connector about the pending lookups; whether any was answered."""
        answered = False
        if self.connector is None:
            return False
        for i, local in plan.pending():
            n, asynchronous = self.connector.get_num_new_matched_tokens(self._live[i].request, local)
            if n is None:
                continue
            self.core.offer(i, Offer(Lookup.OFFER, local + n, asynchronous, beyond=local) if n > 0 else NOTHING)
            answered = True
        return answered

    def _take_up(self, plan: Plan, step: _Step) -> None:
        """What a plan says beside its rows, and block tables for the connector."""
        step.finished |= self._untold
        self._untold = set()
        for i, _ in plan.preempted():
            live = self._live.get(i)
            if live is None:
                continue
            step.preempted.add(live.request.request_id)
            live.request.status = self.types.RequestStatus.PREEMPTED
            live.tables = [[] for _ in range(self._groups)]
            if self.connector is not None:
                self.core.offer(i, ASK)
        if self.connector is None:
            return
        self._send(plan.transfers())
        for load in plan.loads():
            if load.asynchronous:
                live = self._live[load.request]
                live.tables, live.loading = [list(b) for b in load.blocks], True
                live.request.status = self.types.RequestStatus.WAITING_FOR_REMOTE_KVS
                live.request.num_computed_tokens = load.end
                self._tell("update_state_after_alloc", live.request, Blocks(live.tables), load.end - load.start)
        ids, kinds = plan.requests, plan.kinds
        for row in range(plan.rows):
            live = self._live[int(ids[row])]
            for g in range(self._groups):
                at, blocks = plan.table(row, g)
                live.tables[g][at:] = [int(b) for b in blocks]
            if kinds[row] != RowKind.RUNNING:
                live.loading = False
                self._tell("update_state_after_alloc", live.request, Blocks(live.tables), int(plan.external_hits[row]))

    def _scheduler_output(self, plan: Plan, step: _Step) -> Any:
        t, names = self.types, [self._live[int(i)].request.request_id for i in plan.requests]
        new, cached = [], {"req_ids": [], "new_token_ids": [], "new_block_ids": [], "num_computed_tokens": [], "num_output_tokens": []}
        resumed: "set[str]" = set()
        all_tokens: "dict[str, list[int]]" = {}
        scheduled: "dict[str, int]" = {}
        drafts: "dict[str, list[int]]" = {}
        structured = False
        kinds, computed, outputs, draft_counts = plan.kinds, plan.computed, plan.outputs, plan.drafts
        for row, n in enumerate(plan.scheduled):
            name = names[row]
            live = self._live[int(plan.requests[row])]
            request = live.request
            request.status = t.RequestStatus.RUNNING
            request.num_computed_tokens = int(computed[row])
            structured = structured or getattr(request, "structured_output_request", None) is not None
            scheduled[name] = int(n)
            if draft_counts[row]:
                drafts[name] = [-1] * int(draft_counts[row])
            tables = tuple([int(b) for b in plan.table(row, g)[1]] for g in range(self._groups))
            if kinds[row] == RowKind.NEW:
                new.append(
                    build(
                        t.NewRequestData,
                        req_id=name,
                        prompt_token_ids=request.prompt_token_ids,
                        mm_features=[],
                        sampling_params=request.sampling_params,
                        pooling_params=None,
                        block_ids=tables,
                        num_computed_tokens=int(computed[row]),
                        lora_request=getattr(request, "lora_request", None),
                        prompt_embeds=None,
                        prompt_is_token_ids=None,
                        prefill_token_ids=[int(x) for x in plan.known(row)] if self._v2 else None,
                    )
                )
            else:
                cached["req_ids"].append(name)
                cached["new_token_ids"].append([])
                cached["new_block_ids"].append(tables if any(tables) else None)
                cached["num_computed_tokens"].append(int(computed[row]))
                cached["num_output_tokens"].append(int(outputs[row]))
                if kinds[row] == RowKind.RESUMED:
                    resumed.add(name)
                if not self._v2 and live.stepped != self._count - 1:
                    all_tokens[name] = list(request.all_token_ids)
            live.stepped = self._count
        output = build(
            t.SchedulerOutput,
            scheduled_new_reqs=new,
            scheduled_cached_reqs=build(t.CachedRequestData, resumed_req_ids=resumed, all_token_ids=all_tokens, **cached),
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=plan.total,
            scheduled_spec_decode_tokens=drafts,
            scheduled_encoder_inputs={},
            num_common_prefix_blocks=[int(n) for n in plan.common_prefix],
            finished_req_ids=step.finished,
            free_encoder_mm_hashes=[],
            preempted_req_ids=step.preempted,
            has_structured_output_requests=structured,
            pending_structured_output_tokens=any(plan.grammar_waits),
            num_invalid_spec_tokens=None,
            kv_connector_metadata=None,
            ec_connector_metadata=None,
            new_block_ids_to_zero=None,
            num_spec_tokens_to_schedule=plan.next_drafts,
        )
        if self.connector is not None:
            output.kv_connector_metadata = self.connector.build_connector_meta(output)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> "dict[int, Any]":
        """Takes the result of the oldest step and returns outputs by client."""
        step = self._steps[0]
        if step.output is not scheduler_output or step.plan is None:
            raise ValueError("outputs are applied in the order in which steps were scheduled")
        self._steps.popleft()
        plan, result = step.plan, model_runner_output
        transfer = getattr(result, "kv_connector_output", None)
        if self.connector is not None and transfer is not None:
            self._tell("update_connector_output", transfer)
            if invalid := getattr(transfer, "invalid_block_ids", None):
                self.core.deliver([Event(EventKind.FAILED, blocks=tuple(sorted(invalid)))])
        tokens: "list[int]" = []
        counts: "list[int]" = []
        broken: "list[int]" = []
        samples, ids = plan.samples, plan.requests
        for row in range(plan.rows):
            live = self._live.get(int(ids[row]))
            name = live.request.request_id if live else None
            got: "list[int]" = []
            if samples[row]:
                got = self._sampled(result, scheduler_output, row, name)
                if live and not self._accepted(live.request, got):
                    broken.append(row)
            tokens += got
            counts.append(len(got))
        outs = self.core.apply(plan, tokens, counts=counts, grammar_errors=broken or None)
        finished = self._kept
        self._kept = []
        transfers = self.core.transfers
        finished += [self._engine_output(o) for o in outs]
        self._send(transfers)
        if self.connector is not None and transfer is not None:
            self._completed(transfer)
        return self._by_client(finished)

    @staticmethod
    def _sampled(result: Any, output: Any, row: int, name: Optional[str]) -> "list[int]":
        """A row's tokens. A request that ended meanwhile is found by its row."""
        index = result.req_id_to_index.get(name) if name is not None else None
        if index is None:
            index = result.req_id_to_index[list(output.num_scheduled_tokens)[row]]
        return [int(t) for t in result.sampled_token_ids[index]]

    @staticmethod
    def _accepted(request: Any, tokens: "list[int]") -> bool:
        structured = getattr(request, "structured_output_request", None)
        grammar = getattr(structured, "grammar", None)
        return grammar is None or grammar.accept_tokens(request.request_id, tokens)

    def _engine_output(self, o: Output) -> "tuple[int, Any]":
        """An output, and the client that it is for."""
        live = self._live[o.request]
        request = live.request
        if o.tokens:
            request.append_output_token_ids(o.tokens)
        reason, stop = None, None
        if o.finish != Finish.NOT_FINISHED:
            name = _REASONS[o.finish]
            reason = getattr(self.types.FinishReason, name, self.types.FinishReason.STOP)
            stop = _stop_reason(o)
            request.status = getattr(self.types.RequestStatus, _STATUSES[o.finish])
            self._forget(o.request)
        params = None
        if o.finish != Finish.NOT_FINISHED and self.connector is not None:
            params = self._finished(o.request, request, self.core.transfers)
        return getattr(request, "client_index", 0), build(
            self.types.EngineCoreOutput,
            request_id=request.request_id,
            new_token_ids=o.tokens,
            finish_reason=reason,
            stop_reason=stop,
            kv_transfer_params=params,
            num_cached_tokens=o.cached + o.external,
        )

    def _by_client(self, outs: "list[tuple[int, Any]]") -> "dict[int, Any]":
        clients: "dict[int, list[Any]]" = {}
        for client, out in outs:
            clients.setdefault(client, []).append(out)
        ended, self._ended_since = self._ended_since, {}
        for client in ended:
            clients.setdefault(client, [])
        by_client = {}
        for client, list_ in clients.items():
            values: "dict[str, Any]" = {"outputs": list_}
            if self.include_finished_set:
                values["finished_requests"] = ended.get(client) or None
            by_client[client] = build(self.types.EngineCoreOutputs, **values)
        return by_client

    # -- the connector

    def _tell(self, method: str, *arguments: Any) -> None:
        if self.connector is not None and (call := getattr(self.connector, method, None)):
            call(*arguments)

    def _ask(self, method: str, request: Any, blocks: "list[Any]") -> "tuple[bool, Any]":
        """request_finished, or the form of it for several KV groups."""
        every = getattr(self.connector, "request_finished_all_groups", None)
        if every is not None:
            return every(request, tuple(blocks) or tuple([] for _ in range(self._groups)))
        return self.connector.request_finished(request, blocks[0] if blocks else [])

    def _send(self, transfers: "list[Transfer]") -> None:
        """Tells the connector of requests that were finished from outside: their
        sends, if there are any, are in the transfers that come next."""
        leaving, self._leaving = self._leaving, {}
        for i, live in leaving.items():
            self._finished(i, live.request, transfers)

    def _finished(self, i: int, request: Any, transfers: "list[Transfer]") -> Any:
        """Asks the connector whether it keeps an ended request's blocks, and
        returns its parameters for the answer."""
        send = next((x for x in transfers if x.kind == TransferKind.SEND and x.request == i), None)
        delay, params = self._ask("request_finished", request, send.blocks if send else [])
        if send is not None and delay:
            self._held[i] = request.request_id
        elif send is not None:
            self.core.deliver(self._sent(i))
        return params

    def _sent(self, i: int) -> "list[Event]":
        return [Event(EventKind.SENT, i)]

    def _completed(self, transfer: Any) -> None:
        """Loads and sends that ended, by name; unknown names are ignored."""
        held = {name: i for i, name in self._held.items()}
        for name in sorted(getattr(transfer, "finished_recving", None) or ()):
            if name in self._ids:
                self.core.deliver([Event(EventKind.RECEIVED, self._ids[name])])
        for name in sorted(getattr(transfer, "finished_sending", None) or ()):
            if name in held:
                del self._held[held[name]]
                self.core.deliver(self._sent(held[name]))

    def get_kv_connector(self) -> Any:
        """The connector, None if there is none."""
        return self.connector

    # -- what the engine asks

    def get_grammar_bitmask(self, scheduler_output: Any) -> Any:
        """The masks of the step's structured requests; None without any."""
        if not scheduler_output.has_structured_output_requests:
            return None
        names = [n for n in scheduler_output.num_scheduled_tokens if getattr(self.requests.get(n), "structured_output_request", None) is not None]
        if not names:
            return None
        mask = self.structured_output_manager.grammar_bitmask(self.requests, names, scheduler_output.scheduled_spec_decode_tokens)
        return mask if self.types.GrammarOutput is None else self.types.GrammarOutput(names, mask)

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Drafts stay with the executor: there is nothing to take."""

    def update_draft_token_ids_in_output(self, draft_token_ids: Any, scheduler_output: Any) -> None:
        """The same: placeholders stay placeholders."""

    def get_num_unfinished_requests(self) -> int:
        """Requests that have not ended and are not paused."""
        if self._pause == Pause.PAUSE_ALL:
            return 0
        if self._pause == Pause.PAUSE_NEW:
            return len(self.core.queue(QueueKind.RUNNING))
        return len(self._ids)

    def has_unfinished_requests(self) -> bool:
        """Whether some request has not ended."""
        return self.get_num_unfinished_requests() > 0

    def has_finished_requests(self) -> bool:
        """Whether workers have still to be told of an ended request."""
        return bool(self._untold)

    def has_requests(self) -> bool:
        """Whether the engine has to keep stepping."""
        return self.has_unfinished_requests() or self.has_finished_requests() or bool(self._held) or bool(self._leaving) or bool(self._kept)

    def get_request_counts(self) -> "tuple[int, int]":
        """Running and waiting requests."""
        stats = self.core.stats()
        return stats["running"], stats["waiting"] + stats["skipped"]

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forgets cached prefixes; False while they are in use."""
        done = self.core.reset_cache(preempt=reset_running_requests)
        if reset_connector and self.connector is not None:
            done = self.connector.reset_cache() is not False and done
        return done

    @property
    def pause_state(self) -> Pause:
        """What is left alone."""
        return self._pause

    def set_pause_state(self, pause_state: Any) -> None:
        """Takes vLLM's PauseState or this package's Pause."""
        self._pause = {"PAUSED_NEW": Pause.PAUSE_NEW, "PAUSED_ALL": Pause.PAUSE_ALL}.get(pause_state.name, Pause(int(pause_state.value)))
        self.core.set_pause(self._pause)

    def make_stats(self, *_: Any) -> "Optional[dict[str, Any]]":
        """The core's counters; None unless statistics are logged."""
        return self.core.stats() if self.log_stats else None

    def next_deadline(self) -> int:
        """When ``schedule`` is due although nothing arrives."""
        return self.core.next_deadline()

    def shutdown(self) -> None:
        """Gives everything back."""
        self._steps.clear()
        self.core.close()
        self._tell("shutdown")


def _route(params: "dict[str, Any]") -> Route:
    if params.get("decoder_append_prefill"):
        return Route.APPEND_PREFILL
    return Route.REMOTE_PREFILL if params.get("do_remote_prefill") else Route.LOCAL


def _stop_reason(o: Output) -> "Union[int, str, None]":
    if o.stop == Stop.ID:
        return o.stop_token
    if o.finish == Finish.REPETITION:
        return "repetition_detected"
    if o.finish == Finish.RECOMPUTED:
        return "recomputed"
    if o.refusal is not None:
        return "cache_threshold" if o.refusal.reason == RefusalReason.BELOW_THRESHOLD else "append_prefill_miss"
    return None


def _vllm_connector(vllm_config: Any, kv_cache_config: Any) -> Any:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # type: ignore[import-not-found]
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole  # type: ignore[import-not-found]

    return KVConnectorFactory.create_connector(config=vllm_config, role=KVConnectorRole.SCHEDULER, kv_cache_config=kv_cache_config)
