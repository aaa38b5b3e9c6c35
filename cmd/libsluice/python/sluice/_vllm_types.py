"""What a scheduler of vLLM's shape is given and gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional


@dataclasses.dataclass(frozen=True)
class Types:
    """The classes that outputs are made of. :meth:`from_vllm` takes vLLM's;
    tests bring their own. A class gets the fields that it has of those that
    there are, so that versions of vLLM that differ in some are served alike."""

    SchedulerOutput: Any
    NewRequestData: Any
    CachedRequestData: Any
    EngineCoreOutput: Any
    EngineCoreOutputs: Any
    FinishReason: Any
    RequestStatus: Any
    GrammarOutput: Any = None

    @classmethod
    def from_vllm(cls) -> Types:
        """vLLM's own classes."""
        from vllm.v1.core.sched import output as sched  # type: ignore[import-not-found]
        from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason  # type: ignore[import-not-found]
        from vllm.v1.request import RequestStatus  # type: ignore[import-not-found]

        return cls(
            sched.SchedulerOutput,
            sched.NewRequestData,
            sched.CachedRequestData,
            EngineCoreOutput,
            EngineCoreOutputs,
            FinishReason,
            RequestStatus,
            getattr(sched, "GrammarOutput", None),
        )


def fields_of(cls: Any) -> "set[str]":
    """The names of a class's fields: of a dataclass, or of a msgspec struct."""
    if dataclasses.is_dataclass(cls):
        return {f.name for f in dataclasses.fields(cls)}
    return set(getattr(cls, "__struct_fields__", ()))


def build(cls: Any, **values: Any) -> Any:
    """An object of the class with those of the values that it has a field for."""
    names = fields_of(cls)
    return cls(**{k: v for k, v in values.items() if k in names})


class Blocks:
    """A request's block table as connectors look at it."""

    def __init__(self, tables: "Sequence[Sequence[int]]") -> None:
        self._ids = tuple(list(t) for t in tables)

    def get_block_ids(self, allow_none: bool = False) -> "Optional[tuple[list[int], ...]]":
        """Block ids per KV group; None, if that is allowed, where there are none."""
        if allow_none and not any(self._ids):
            return None
        return self._ids


def core_config(vllm_config: Any, kv_cache_config: Any, block_size: Optional[int], connector: bool) -> "dict[str, Any]":
    """The configuration of a :class:`sluice.Scheduler` that vLLM's asks for."""
    sched, cache, model = vllm_config.scheduler_config, vllm_config.cache_config, vllm_config.model_config
    get = getattr
    draft = get(vllm_config, "speculative_config", None)
    drafts = int(get(draft, "num_speculative_tokens", 0) or 0) if draft is not None else 0
    asynchronous = bool(get(sched, "async_scheduling", False))
    if drafts and not asynchronous:
        raise ValueError("speculative decoding needs asynchronous scheduling here: drafts that stay with the executor")
    window = int(get(sched, "max_num_batched_tokens", 0) or 2048)
    in_flight = 1
    if asynchronous:
        stages = int(get(get(vllm_config, "parallel_config", None), "pipeline_parallel_size", 1) or 1)
        in_flight = 2 if stages == 1 else stages + 1
    core: "dict[str, Any]" = {
        "MaxModelLen": int(model.max_model_len),
        "MaxNumSeqs": int(sched.max_num_seqs),
        "MaxBatchedTokens": window,
        "Scheduling": "Async" if asynchronous else "Sync",
        "InFlight": in_flight,
        "Drafts": drafts,
        "Chunking": "ChunkedPrefill" if get(sched, "enable_chunked_prefill", True) else "WholePrefill",
        "Admission": "WholeSequence" if get(sched, "scheduler_reserve_full_isl", True) else "FirstChunk",
        "LongPrefillThreshold": int(get(sched, "long_prefill_token_threshold", 0) or 0),
        "MaxScheduledTokens": int(get(sched, "max_num_scheduled_tokens", 0) or 0),
        "Watermark": float(get(sched, "watermark", 0.0) or 0.0),
        "Policy": str(get(sched, "policy", "fcfs")),
        "Executor": "NewResume" if get(vllm_config, "use_v2_model_runner", False) else "CachedResume",
    }
    lora = get(vllm_config, "lora_config", None)
    if lora is not None:
        core["MaxLoRAs"] = int(lora.max_loras)
    transfer = get(vllm_config, "kv_transfer_config", None)
    if transfer is not None and get(transfer, "kv_load_failure_policy", "fail") == "recompute":
        core["LoadFailure"] = "RecomputeLoad"
    extra = (get(vllm_config, "additional_config", None) or {}).get("scheduler_config", {})
    if extra.get("decoder_append_prefill_enable"):
        core["Append"] = {"Enable": True}
    if extra.get("recompute_scheduler_enable"):
        core["Recompute"] = "RecomputeAway"
    groups = []
    for g in get(kv_cache_config, "kv_cache_groups", None) or ():
        spec = get(g, "kv_cache_spec", None)
        size = get(spec, "sliding_window", None)
        groups.append({"Kind": "SlidingWindow", "Window": int(size)} if size else {"Kind": "FullAttention"})
    config: "dict[str, Any]" = {
        "Cache": {
            "Blocks": int(kv_cache_config.num_blocks),
            "BlockSize": int(block_size or cache.block_size),
            "Caching": "CachingOn" if get(cache, "enable_prefix_caching", True) else "CachingOff",
            "Groups": groups,
            "MaxInFlight": window * in_flight,
        },
        "Scheduler": core,
    }
    if connector:
        producer = bool(get(transfer, "is_kv_producer", False))
        config["Connector"] = {"Lookup": "Ask", "Delivery": "Required" if producer else "Optional"}
    return config
