"""The structures of sluice.h, field by field."""

from ctypes import POINTER, Structure, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64


class Info(Structure):
    """``sluice_info_t``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("blocks", c_int32),
        ("block_size", c_int32),
        ("groups", c_int32),
        ("max_len", c_int32),
        ("max_rows", c_int32),
        ("max_tokens", c_int32),
        ("in_flight", c_int32),
        ("drafts", c_int32),
        ("graph_keys", c_int32),
    ]


class Offer(Structure):
    """``sluice_offer_t``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("lookup", c_int32),
        ("tokens", c_int64),
        ("async_load", c_int32),
        ("repeat", c_int32),
        ("beyond", c_int64),
        ("timeout", c_int64),
    ]


class Request(Structure):
    """``sluice_request_t``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("name", c_char_p),
        ("prompt", POINTER(c_int32)),
        ("prompt_size", c_size_t),
        ("route", c_int32),
        ("grammar", c_int32),
        ("tenant", c_char_p),
        ("session", c_char_p),
        ("space_tenant", c_char_p),
        ("salt", c_char_p),
        ("lora_name", c_char_p),
        ("lora_id", c_int64),
        ("media", c_char_p),
        ("variant", c_char_p),
        ("max_tokens", c_int64),
        ("min_tokens", c_int64),
        ("eos", POINTER(c_int32)),
        ("eos_size", c_size_t),
        ("stop", POINTER(c_int32)),
        ("stop_size", c_size_t),
        ("repeat_min", c_int32),
        ("repeat_max", c_int32),
        ("repeat_count", c_int32),
        ("priority", c_int32),
        ("arrival", c_int64),
        ("deadline", c_int64),
        ("remote_eta", c_int64),
        ("hit_threshold", c_double),
        ("turn_end", c_int32),
        ("reserved", c_int32),
        ("offer", Offer),
    ]


class Event(Structure):
    """``sluice_event_t``."""

    _fields_ = [
        ("request", c_uint64),
        ("kind", c_int32),
        ("worker", c_int32),
        ("blocks", POINTER(c_int32)),
        ("blocks_size", c_size_t),
    ]


class Transfers(Structure):
    """``sluice_transfers_t``."""

    _fields_ = [
        ("size", c_int32),
        ("groups", c_int32),
        ("kinds", POINTER(c_uint8)),
        ("requests", POINTER(c_uint64)),
        ("tokens", POINTER(c_int32)),
        ("blocks", POINTER(c_int32)),
        ("blocks_at", POINTER(c_int32)),
    ]


class GraphKey(Structure):
    """``sluice_graph_key_t``."""

    _fields_ = [
        ("mode", c_int32),
        ("tokens", c_int32),
        ("reqs", c_int32),
        ("uniform", c_int32),
        ("bound", c_int32),
        ("lora", c_int32),
    ]


class Decision(Structure):
    """``sluice_decision_t``."""

    _fields_ = [
        ("mode", c_int32),
        ("reason", c_int32),
        ("tokens", c_int32),
        ("reqs", c_int32),
        ("padded_tokens", c_int32),
        ("padded_reqs", c_int32),
        ("uniform", c_int32),
        ("key_id", c_int32),
        ("key", GraphKey),
        ("tails", c_int32),
        ("padded_tails", c_int32),
    ]


class Batch(Structure):
    """``sluice_batch_t``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("size", c_size_t),
        ("scheduled", POINTER(c_int32)),
        ("drafts", POINTER(c_int32)),
        ("placeholders", POINTER(c_int32)),
        ("computed", POINTER(c_int32)),
        ("prefill", POINTER(c_int32)),
        ("loras", c_int32),
        ("trimmed_tokens", c_int32),
        ("rank_tokens", c_int32),
        ("fewer_drafts", c_int32),
    ]


class Refusal(Structure):
    """``sluice_refusal_t``."""

    _fields_ = [
        ("reason", c_uint8),
        ("prompt_tokens", c_int32),
        ("cached_tokens", c_int32),
    ]


class Plan(Structure):
    """``sluice_plan_t``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("rows", c_int32),
        ("seq", c_uint64),
        ("now", c_int64),
        ("applied", c_uint64),
        ("groups", c_int32),
        ("total", c_int32),
        ("loras", c_int32),
        ("next_drafts", c_int32),
        ("free", c_int32),
        ("waits", c_int32),
        ("requests", POINTER(c_uint64)),
        ("kinds", POINTER(c_uint8)),
        ("scheduled", POINTER(c_int32)),
        ("drafts", POINTER(c_int32)),
        ("placeholders", POINTER(c_int32)),
        ("computed", POINTER(c_int32)),
        ("prefill", POINTER(c_int32)),
        ("outputs", POINTER(c_int32)),
        ("samples", POINTER(c_uint8)),
        ("local_hits", POINTER(c_int32)),
        ("external_hits", POINTER(c_int32)),
        ("inputs", POINTER(c_int32)),
        ("inputs_at", POINTER(c_int32)),
        ("known", POINTER(c_int32)),
        ("known_at", POINTER(c_int32)),
        ("table_from", POINTER(c_int32)),
        ("blocks", POINTER(c_int32)),
        ("blocks_at", POINTER(c_int32)),
        ("common_prefix", POINTER(c_int32)),
        ("verdicts", POINTER(c_uint8)),
        ("graph", Decision),
        ("grammar_size", c_int32),
        ("grammar_rows", POINTER(c_int32)),
        ("grammar_waits", POINTER(c_uint8)),
        ("loads_size", c_int32),
        ("loads", POINTER(c_uint64)),
        ("loads_from", POINTER(c_int32)),
        ("loads_to", POINTER(c_int32)),
        ("loads_async", POINTER(c_uint8)),
        ("load_blocks", POINTER(c_int32)),
        ("load_blocks_at", POINTER(c_int32)),
        ("pending_size", c_int32),
        ("pending", POINTER(c_uint64)),
        ("pending_local", POINTER(c_int32)),
        ("finished_size", c_int32),
        ("finished", POINTER(c_uint64)),
        ("finished_reasons", POINTER(c_uint8)),
        ("preempted_size", c_int32),
        ("preempted", POINTER(c_uint64)),
        ("preempted_saved", POINTER(c_uint8)),
        ("rolled_back_size", c_int32),
        ("rolled_back", POINTER(c_uint64)),
        ("refused_size", c_int32),
        ("refused", POINTER(c_uint64)),
        ("refusals", POINTER(Refusal)),
        ("released_size", c_int32),
        ("released", POINTER(c_uint64)),
        ("transfers", Transfers),
    ]


class Result(Structure):
    """``sluice_result_t``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("failed", c_int32),
        ("elapsed", c_int64),
        ("tokens", POINTER(c_int32)),
        ("tokens_size", c_size_t),
        ("counts", POINTER(c_int32)),
        ("counts_size", c_size_t),
        ("drafts", POINTER(c_int32)),
        ("drafts_size", c_size_t),
        ("draft_counts", POINTER(c_int32)),
        ("draft_counts_size", c_size_t),
        ("grammar_errors", POINTER(c_int32)),
        ("grammar_errors_size", c_size_t),
    ]


class Output(Structure):
    """``sluice_output_t``."""

    _fields_ = [
        ("request", c_uint64),
        ("tokens_at", c_int32),
        ("tokens_size", c_int32),
        ("finish", c_uint8),
        ("stop", c_uint8),
        ("first", c_uint8),
        ("cause", c_uint8),
        ("stop_token", c_int32),
        ("cached", c_int32),
        ("external", c_int32),
        ("refusal", Refusal),
    ]


class Outputs(Structure):
    """``sluice_outputs_t``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("size", c_int32),
        ("outputs", POINTER(Output)),
        ("tokens", POINTER(c_int32)),
        ("tokens_size", c_int32),
        ("reserved", c_int32),
        ("transfers", Transfers),
    ]


class Proposal(Structure):
    """``sluice_proposal_t``."""

    _fields_ = [
        ("cap", c_int32),
        ("wants", c_int32),
    ]


class Agreement(Structure):
    """``sluice_agreement_t``."""

    _fields_ = [
        ("cap", c_int32),
        ("chunk", c_int32),
    ]


class KvEvents(Structure):
    """``sluice_kv_events_t``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("size", c_int32),
        ("block_size", c_int32),
        ("hash_size", c_int32),
        ("kinds", POINTER(c_uint8)),
        ("groups", POINTER(c_int32)),
        ("hashes", POINTER(c_uint8)),
        ("hashes_at", POINTER(c_int32)),
        ("parents", POINTER(c_uint8)),
        ("has_parent", POINTER(c_uint8)),
        ("tokens", POINTER(c_int32)),
        ("tokens_at", POINTER(c_int32)),
        ("lora_ids", POINTER(c_int64)),
        ("texts", POINTER(c_uint8)),
        ("texts_at", POINTER(c_int32)),
    ]


class Stats(Structure):
    """``sluice_stats_t``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("running", c_int32),
        ("waiting", c_int32),
        ("skipped", c_int32),
        ("idle", c_int32),
        ("held", c_int32),
        ("blocks_usable", c_int32),
        ("blocks_free", c_int32),
        ("blocks_cached", c_int32),
        ("blocks_held", c_int32),
        ("blocks_available", c_int32),
        ("reserved", c_int32),
        ("added", c_uint64),
        ("finished", c_uint64 * 8),
        ("refused", c_uint64 * 7),
        ("steps", c_uint64),
        ("rows", c_uint64),
        ("tokens", c_uint64),
        ("generated", c_uint64),
        ("preemptions", c_uint64),
        ("loads", c_uint64),
        ("leases", c_uint64),
        ("dropped", c_uint64),
        ("timeouts", c_uint64),
        ("ignored", c_uint64),
        ("failed_blocks", c_uint64),
        ("failed_steps", c_uint64),
        ("prefix_requests", c_uint64),
        ("prefix_queries", c_uint64),
        ("prefix_hits", c_uint64),
        ("resumed_requests", c_uint64),
        ("resumed_queries", c_uint64),
        ("resumed_hits", c_uint64),
        ("connector_requests", c_uint64),
        ("connector_queries", c_uint64),
        ("connector_hits", c_uint64),
        ("prompt_tokens", c_uint64),
        ("prompt_local", c_uint64),
        ("prompt_external", c_uint64),
        ("draft_rows", c_uint64),
        ("draft_tokens", c_uint64),
        ("drafts_accepted", c_uint64),
        ("evictions", c_uint64),
        ("c_bytes", c_uint64),
    ]


class Replayed(Structure):
    """``sluice_replayed_t``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("diverged", c_int32),
        ("lines", c_int64),
        ("plans", c_int64),
        ("outputs", c_int64),
    ]
