"""Types of vLLM's shape: the fields that its scheduler reads and writes."""

import enum
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Optional

from sluice._vllm_types import Types


class RequestStatus(enum.IntEnum):
    WAITING = 0
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 1
    WAITING_FOR_REMOTE_KVS = 2
    WAITING_FOR_STREAMING_REQ = 3
    RUNNING = 4
    PREEMPTED = 5
    FINISHED_STOPPED = 6
    FINISHED_LENGTH_CAPPED = 7
    FINISHED_ABORTED = 8
    FINISHED_IGNORED = 9
    FINISHED_ERROR = 10
    FINISHED_REPETITION = 11


class FinishReason(enum.IntEnum):
    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4


class PauseState(enum.IntEnum):
    UNPAUSED = 0
    PAUSED_NEW = 1
    PAUSED_ALL = 2


@dataclass
class NewRequestData:
    req_id: str
    prompt_token_ids: "list[int]"
    mm_features: "list[Any]"
    sampling_params: Any
    pooling_params: Any
    block_ids: "tuple[list[int], ...]"
    num_computed_tokens: int
    lora_request: Any
    prompt_embeds: Any = None
    prompt_is_token_ids: Any = None
    prefill_token_ids: "Optional[list[int]]" = None


@dataclass
class CachedRequestData:
    req_ids: "list[str]"
    resumed_req_ids: "set[str]"
    new_token_ids: "list[list[int]]"
    all_token_ids: "dict[str, list[int]]"
    new_block_ids: "list[Optional[tuple[list[int], ...]]]"
    num_computed_tokens: "list[int]"
    num_output_tokens: "list[int]"


@dataclass
class SchedulerOutput:
    scheduled_new_reqs: "list[NewRequestData]"
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: "dict[str, int]"
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: "dict[str, list[int]]"
    scheduled_encoder_inputs: "dict[str, list[int]]"
    num_common_prefix_blocks: "list[int]"
    finished_req_ids: "set[str]"
    free_encoder_mm_hashes: "list[str]"
    preempted_req_ids: "Optional[set[str]]" = None
    has_structured_output_requests: bool = False
    pending_structured_output_tokens: bool = False
    num_invalid_spec_tokens: "Optional[dict[str, int]]" = None
    kv_connector_metadata: Any = None


@dataclass
class GrammarOutput:
    structured_output_request_ids: "list[str]"
    grammar_bitmask: Any


@dataclass
class EngineCoreOutput:
    request_id: str
    new_token_ids: "list[int]"
    finish_reason: "Optional[FinishReason]" = None
    stop_reason: Any = None
    kv_transfer_params: "Optional[dict[str, Any]]" = None
    num_cached_tokens: int = 0


@dataclass
class EngineCoreOutputs:
    outputs: "list[EngineCoreOutput]" = field(default_factory=list)
    finished_requests: "Optional[set[str]]" = None


TYPES = Types(SchedulerOutput, NewRequestData, CachedRequestData, EngineCoreOutput, EngineCoreOutputs, FinishReason, RequestStatus, GrammarOutput)


@dataclass
class Request:
    request_id: str
    prompt_token_ids: "list[int]"
    max_tokens: int = 4
    sampling_params: Any = field(default_factory=lambda: SimpleNamespace(min_tokens=0, stop_token_ids=[], ignore_eos=False))
    eos_token_id: Optional[int] = None
    arrival_time: float = 0.0
    priority: int = 0
    client_index: int = 0
    lora_request: Any = None
    cache_salt: Optional[str] = None
    kv_transfer_params: "Optional[dict[str, Any]]" = None
    structured_output_request: Any = None
    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0
    output_token_ids: "list[int]" = field(default_factory=list)

    def append_output_token_ids(self, tokens: "list[int]") -> None:
        self.output_token_ids.extend(tokens)

    @property
    def all_token_ids(self) -> "list[int]":
        return self.prompt_token_ids + self.output_token_ids


def config(*, blocks: int = 100, max_num_seqs: int = 16, max_num_batched_tokens: int = 256, max_model_len: int = 256, **more: Any) -> "tuple[Any, Any]":
    """A configuration of vLLM's shape, and that of its cache."""
    scheduler = {"policy": "fcfs", "async_scheduling": False, "enable_chunked_prefill": True, "long_prefill_token_threshold": 0}
    top = {k: more.pop(k) for k in list(more) if k in ("additional_config", "speculative_config", "kv_transfer_config", "lora_config", "use_v2_model_runner")}
    scheduler.update(more)
    vllm_config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, **scheduler),
        cache_config=SimpleNamespace(block_size=16, enable_prefix_caching=True),
        model_config=SimpleNamespace(max_model_len=max_model_len),
        **top,
    )
    return vllm_config, SimpleNamespace(num_blocks=blocks, kv_cache_groups=[])


def result(output: SchedulerOutput, tokens: "dict[str, list[int]]", transfer: Any = None) -> Any:
    """What a model runner returns for a step: tokens by request."""
    names = list(output.num_scheduled_tokens)
    return SimpleNamespace(
        req_ids=names,
        req_id_to_index={n: i for i, n in enumerate(names)},
        sampled_token_ids=[tokens.get(n, []) for n in names],
        kv_connector_output=transfer,
    )


class Connector:
    """The scheduler's side of a connector, its answers given by name: how many
    tokens are there beyond the local hit, and whether they come asynchronously.
    None: ask again. Every call is noted."""

    def __init__(self, matched: "dict[str, Any]", delay: "tuple[str, ...]" = ()) -> None:
        self.matched = matched
        self.delay = delay
        self.calls: "list[tuple[Any, ...]]" = []

    def on_new_request(self, request: Any) -> None:
        self.calls.append(("new", request.request_id))

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> "tuple[Optional[int], bool]":
        answer = self.matched.get(request.request_id, (0, False))
        if isinstance(answer, list):  # one after the other
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        n, asynchronous = answer
        self.calls.append(("matched", request.request_id, computed, n))
        return n, asynchronous

    def update_state_after_alloc(self, request: Any, blocks: Any, external: int) -> None:
        self.calls.append(("alloc", request.request_id, len(blocks.get_block_ids()[0]), external))

    def build_connector_meta(self, output: Any) -> Any:
        return {"scheduled": dict(output.num_scheduled_tokens)}

    def update_connector_output(self, output: Any) -> None:
        self.calls.append(("output",))

    def request_finished(self, request: Any, block_ids: "list[int]") -> "tuple[bool, Optional[dict[str, Any]]]":
        self.calls.append(("finished", request.request_id, len(block_ids)))
        if request.request_id in self.delay and block_ids:
            return True, {"remote_block_ids": block_ids}
        return False, None

    def of(self, name: str) -> "list[tuple[Any, ...]]":
        """The calls about a request."""
        return [c for c in self.calls if len(c) > 1 and c[1] == name]


def transfer(recving: "tuple[str, ...]" = (), sending: "tuple[str, ...]" = (), invalid: "tuple[int, ...]" = ()) -> Any:
    """What workers report."""
    return SimpleNamespace(finished_recving=set(recving), finished_sending=set(sending), invalid_block_ids=set(invalid))
