package publish

import "sync"

// outbox holds the messages that wait for one peer, and takes no memory for
// those that do not.
type outbox struct {
	wake chan struct{} // has an element when there may be messages

	mu    sync.Mutex
	limit int
	list  [][]byte
}

func newOutbox(limit int) *outbox { return &outbox{wake: make(chan struct{}, 1), limit: limit} }

// put is false, and keeps nothing, when there is no room.
func (o *outbox) put(m []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.list) >= o.limit {
		return false
	}
	o.list = append(o.list, m)
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return true
}

// next takes the oldest message out.
func (o *outbox) next() ([]byte, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.list) == 0 {
		o.list = nil
		return nil, false
	}
	m := o.list[0]
	o.list[0] = nil
	o.list = o.list[1:]
	return m, true
}
