// Package load replays a workload against any OpenAI-compatible server and
// records what each request did.
//
// Each session is a closed loop with a goroutine of its own: it arrives, sends
// a turn, waits for the end of the answer, thinks, and sends the next turn with
// the whole history, in which the assistant's parts are the replies that really
// came. Sessions are independent of each other. Run returns when all have ended.
//
// Answers are streamed and read by event; a request's times are taken when its
// events arrive.
package load
