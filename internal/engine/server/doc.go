// Package server is the HTTP surface of the reference engine, as vLLM's server
// has it: completions and chat completions with server-sent events, models,
// health, metrics and the reset of the prefix cache, and the headers and the
// refusal by which a proxy drives append-prefill.
//
// A handler reads and checks a request, hands it to the engine, and relays what
// the stream gives. It ends with the request's context: a client that goes away
// aborts its requests. Errors that come before the first byte have a status and
// OpenAI's error body; later ones are an event of the stream.
package server
