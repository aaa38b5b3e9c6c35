package route

import "time"

// binding is how firmly a session belongs to its target.
type binding uint8

const (
	// placed: a first turn is on its way to the target; concurrent first turns
	// go there too, but nothing is attempted on it yet.
	placed binding = iota
	// provisional: the target gave output to a turn that is not complete.
	provisional
	// bound: a turn completed on the target.
	bound
)

func (b binding) String() string {
	return [...]string{"placed", "provisional", "bound"}[b]
}

// session is one row of the owner table.
type session struct {
	key        SessionKey
	prev, next int32 // neighbours in order of use; -1 at the ends

	state      binding
	claimed    bool // placed by another router
	inFlight   int32
	rank       Rank
	owner      uint32 // serial of the decoder
	generation uint32 // of the owner's rank when the session was bound
	prefiller  uint32 // serial of the last prefiller, 0 for none

	lastUse       int64 // nanoseconds since 1970
	bytes         int32 // body of the last completed turn
	promptTokens  int32 // of the last completed turn; 0 unknown
	resident      int32 // tokens that the owner said to hold; -1 unknown
	counted       int32 // tokens counted for this session in the rank's resident sum
	residentUntil int64 // nanoseconds since 1970; 0 unknown
}

// table is the owner table: a map into a slab of rows that are linked in order
// of use. Its memory is bounded by the number of rows.
type table struct {
	index      map[SessionKey]int32
	rows       []session
	free       []int32
	head, tail int32 // most and least recently used; -1 when empty
	max        int
	ttl        time.Duration
	evicted    uint64 // rows dropped for the size cap
	expired    uint64 // rows dropped for their age
	dropped    func(*session)
}

func newTable(max int, ttl time.Duration, dropped func(*session)) *table {
	return &table{index: map[SessionKey]int32{}, head: -1, tail: -1, max: max, ttl: ttl, dropped: dropped}
}

func (t *table) len() int { return len(t.index) }

// get finds a session without counting it as used.
func (t *table) get(key SessionKey) *session {
	if i, ok := t.index[key]; ok {
		return &t.rows[i]
	}
	return nil
}

// touch finds or makes the row of a session and moves it to the front. The
// pointer is valid until the next call of touch.
func (t *table) touch(now time.Time, key SessionKey) (row *session, fresh bool) {
	i, ok := t.index[key]
	if ok {
		t.unlink(i)
	} else {
		for len(t.index) >= t.max {
			t.evicted++
			t.remove(t.tail)
		}
		if n := len(t.free); n > 0 {
			i, t.free = t.free[n-1], t.free[:n-1]
		} else {
			i = int32(len(t.rows))
			t.rows = append(t.rows, session{})
		}
		t.rows[i] = session{key: key, resident: -1}
		t.index[key] = i
	}
	t.link(i)
	row = &t.rows[i]
	row.lastUse = now.UnixNano()
	return row, !ok
}

// expire drops the sessions unused for longer than the time to live.
func (t *table) expire(now time.Time) {
	for t.tail >= 0 && now.UnixNano()-t.rows[t.tail].lastUse > int64(t.ttl) {
		t.expired++
		t.remove(t.tail)
	}
}

func (t *table) drop(key SessionKey) bool {
	i, ok := t.index[key]
	if ok {
		t.remove(i)
	}
	return ok
}

func (t *table) remove(i int32) {
	t.dropped(&t.rows[i])
	t.unlink(i)
	delete(t.index, t.rows[i].key)
	t.rows[i] = session{}
	t.free = append(t.free, i)
}

func (t *table) link(i int32) {
	row := &t.rows[i]
	row.prev, row.next = -1, t.head
	if t.head >= 0 {
		t.rows[t.head].prev = i
	}
	t.head = i
	if t.tail < 0 {
		t.tail = i
	}
}

func (t *table) unlink(i int32) {
	row := &t.rows[i]
	if row.prev >= 0 {
		t.rows[row.prev].next = row.next
	} else {
		t.head = row.next
	}
	if row.next >= 0 {
		t.rows[row.next].prev = row.prev
	} else {
		t.tail = row.prev
	}
}
