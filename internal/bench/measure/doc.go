// Package measure holds the record of one request of a load run and the
// formulas that turn records into the figures of a comparison.
//
// The definitions, all unit-tested:
//   - total time runs from the start of the workload to the end of its last
//     request; think time and the tail are part of it, model loading is not;
//   - output throughput is all output tokens over the total time, also those
//     of answers that turned out wrong;
//   - request throughput is the number of protocol-valid completions over the
//     total time;
//   - TTFT runs from the moment a turn becomes eligible (the session's
//     arrival, or the end of the turn before plus its think time) to the first
//     output, so it includes the client and every queue;
//   - TPOT is the time from first to last output over the output tokens
//     minus one; a request with fewer than two output tokens has none;
//   - a gain is taken from unrounded values and is positive for the better:
//     more throughput, less time, shorter queues.
//
// Everything in the package is pure.
package measure
