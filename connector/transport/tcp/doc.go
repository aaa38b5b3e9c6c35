// Package tcp is the transport in pure Go: scatter and gather lists over
// several TCP (or TLS) connections a peer, with optional CRC32C.
//
// # Wire
//
// Every frame is a header of 24 bytes, little endian, and a payload:
//
//	0  kind     u8   hello, read, write, data, done, notify, lend, back, offer, card,
//	                 units, put
//	1  flags    u8   bit 0: payload checksum present; bit 1: last data frame;
//	                 bit 2: may be lent; bit 3: likewise, device memory;
//	                 bit 4: a ticket is in front
//	2  status   u16  of a done frame
//	4  length   u32  payload bytes
//	8  id       u64  of the request
//	16 crc      u32  CRC32C of the payload, when flagged
//	20 check    u32  CRC32C of the 20 bytes before
//
// The dialer sends hello, the acceptor answers with its own. Then the dialer
// sends requests and the acceptor answers them one after the other in order:
//
//	read   → data…                 or done with an error status
//	write, data…                   → done
//	notify                         → done
//
// Over a Direct network the bytes of memory that both sides can address need
// not travel on the streams: a read is answered by where they lie, a write says
// where they lie, and whoever receives them fetches them.
//
//	read   → lend;  back           → done, an error if the grant has ended meanwhile
//	offer                          → done
//
// What was offered, here or below, and not answered before its connection broke is not sent
// again: the peer may still be fetching. Behind a pause it is looked first whether the peer
// has hung up.
//
// Where both sides have a Near they exchange cards behind the hello, and the
// same three kinds, flagged, move device memory, fetched by the device. Between
// two that both know it, a read or a write of blocks names regions and blocks once, in
// place of their product:
//
//	units  → lend;  back           → done
//	put                            → done
//
// Where both say that they know of tickets too, one may stand in front of a request
// for units, in place of its capability; what it names must still stand behind back.
// The reader may begin to fetch as it asks, by what it was lent of the same regions
// before: that counts if it is lent the same once more, and if done says so.
//
// A request's payload is the capability (16), the total length (u64), the
// number of segments (u32) and per segment region (u32), offset (u64), length
// (u32). An unknown kind, a wrong check, or a length above the kind's limit
// closes the connection; no such length sizes an allocation.
//
// # Goroutines
//
// A Transport owns its accept loop and one goroutine per accepted connection;
// a Peer owns Conns goroutines. Those of connections to neighbours wait on them, so
// that a neighbour that goes away is noticed. Close ends them and waits.
package tcp
