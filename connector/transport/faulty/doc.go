// Package faulty wraps a transport and breaks it by script, so that tests and
// chaos runs meet the faults that networks have.
//
// A script is a list of rules, one a line or separated by semicolons:
//
//	read#3 drop             the third read never completes
//	read%10 delay 50ms      every tenth read is late
//	write corrupt           every write damages one segment, and says so
//	notify?0.1 error        a tenth of the notifications fail
//	any#20 kill             at the twentieth call the peer is gone
//	connect#2 error         the second connection cannot be made
//	conn#1 flip 1000000     below the transport: a byte is damaged
//
// Calls: read, write, notify, connect, any (of read, write, notify), conn (a
// connection of the tcp transport, see [Script.WrapConn]). Which: #n the n-th,
// %n every n-th, ?p with probability p from the seed, none of them all.
//
// Actions on calls: delay D, drop, error, corrupt, reorder (completes after the
// next call), kill, repeat (a notification arrives twice). Actions on
// connections, after so many written bytes: flip N, cut N, stall N; and slow D
// (before every write).
//
// The n-th call is counted in the order in which calls arrive, over all peers.
package faulty
