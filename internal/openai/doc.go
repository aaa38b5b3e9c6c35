// Package openai holds the wire types of the OpenAI-compatible HTTP surface
// that the engine serves and the proxy forwards: requests and responses of
// /v1/completions, /v1/chat/completions and /v1/models, the usage and error
// shapes, the refusal of a local append-prefill attempt, and server-sent
// events.
//
// The types carry vLLM's extensions where vLLM has a name for a thing
// (kv_transfer_params, cache_salt, stop_token_ids, ignore_eos, min_tokens,
// return_token_ids, stop_reason). kv_transfer_params travels as raw JSON: only
// a connector knows its members.
//
// Decoding ignores members it does not know, as OpenAI-compatible servers do;
// ranges (a negative max_tokens, an empty prompt) are the server's to check.
// Everything in the package is a value; nothing here owns a goroutine.
package openai
