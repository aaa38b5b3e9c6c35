// Package load replays a workload against any OpenAI-compatible server and
// records what each request did.
//
// Each session is a closed loop with a goroutine of its own: it arrives, sends
// a turn, waits for the end of the answer, thinks, and sends the next turn with
// the whole history, in which the assistant's parts are the replies that really
// came. Sessions are independent of each other. Run returns when all have ended.
//
// Answers are streamed; a request's times are taken when its events arrive. The time
// of an event is when its first byte came on the connection: a server writes it when
// it has the token, and how long the rest takes says how much was asked for besides.
// An answer is parsed when it has ended, so that no event is noted late because the one
// before it was long, and a request is encoded a little before it is due.
package load
