package faulty

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"
)

type call uint8

const (
	callRead call = iota
	callWrite
	callNotify
	callConnect
	callAny
	callConn
	calls
)

var callNames = [calls]string{"read", "write", "notify", "connect", "any", "conn"}

func (c call) String() string { return callNames[c] }

type action uint8

const (
	actDelay action = iota
	actDrop
	actError
	actCorrupt
	actReorder
	actKill
	actRepeat
	actFlip
	actCut
	actStall
	actSlow
	actions
)

var actionNames = [actions]string{"delay", "drop", "error", "corrupt", "reorder", "kill", "repeat", "flip", "cut", "stall", "slow"}

func (a action) String() string { return actionNames[a] }

// fits says which calls an action is for.
func (a action) fits(c call) bool {
	switch {
	case c == callConn:
		return a >= actFlip
	case a >= actFlip:
		return false
	case c == callConnect:
		return a == actDelay || a == actDrop || a == actError
	case a == actRepeat:
		return c == callNotify
	case a == actCorrupt:
		return c != callNotify
	}
	return true
}

// rule is one line of a script.
type rule struct {
	call  call
	nth   int     // #n
	every int     // %n
	prob  float64 // ?p
	act   action
	wait  time.Duration // of delay and slow
	bytes int64         // of flip, cut and stall
}

// Script decides which calls fail, and how. It is shared by all transports
// that it is given to; its methods may be called from any goroutine.
type Script struct {
	mu     sync.Mutex
	rules  []rule
	counts [calls]int
	random *rand.Rand
	done   []string // what was done, in order
}

// Parse reads a script. The seed drives the rules with a probability.
func Parse(text string, seed uint64) (*Script, error) {
	s := &Script{random: rand.New(rand.NewPCG(seed, 0))}
	var errs []error
	for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == ';' }) {
		line, _, _ = strings.Cut(line, "//")
		if fields := strings.Fields(line); len(fields) > 0 {
			r, err := parseRule(fields)
			if err != nil {
				errs = append(errs, fmt.Errorf("fault %q: %w", strings.TrimSpace(line), err))
			}
			s.rules = append(s.rules, r)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s, nil
}

func parseRule(f []string) (rule, error) {
	var r rule
	name, which := f[0], ""
	if i := strings.IndexAny(name, "#%?"); i >= 0 {
		name, which = name[:i], name[i:]
	}
	c, err := index(callNames[:], name, "call")
	if err != nil {
		return r, err
	}
	r.call = call(c)
	if which != "" {
		n, err := strconv.ParseFloat(which[1:], 64)
		if err != nil || n <= 0 || which[0] != '?' && n != float64(int(n)) || which[0] == '?' && n > 1 {
			return r, fmt.Errorf("%q names no call", which)
		}
		switch which[0] {
		case '#':
			r.nth = int(n)
		case '%':
			r.every = int(n)
		case '?':
			r.prob = n
		}
	}
	if len(f) < 2 {
		return r, errors.New("no action")
	}
	a, err := index(actionNames[:], f[1], "action")
	if err != nil {
		return r, err
	}
	if r.act = action(a); !r.act.fits(r.call) {
		return r, fmt.Errorf("%v is not for %v", r.act, r.call)
	}
	args := f[2:]
	switch r.act {
	case actDelay, actSlow:
		if len(args) == 1 {
			r.wait, err = time.ParseDuration(args[0])
		}
	case actFlip, actCut, actStall:
		if len(args) == 1 {
			r.bytes, err = strconv.ParseInt(args[0], 10, 64)
		}
	default:
		if len(args) != 0 {
			return r, fmt.Errorf("%v takes no argument", r.act)
		}
		return r, nil
	}
	if err != nil || len(args) != 1 || r.wait < 0 || r.bytes < 0 {
		return r, fmt.Errorf("%v takes one argument above 0", r.act)
	}
	return r, nil
}

func index(names []string, name, what string) (int, error) {
	for i, n := range names {
		if n == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("unknown %s %q, want one of %s", what, name, strings.Join(names, ", "))
}

// next counts a call and returns the rules that hit it.
func (s *Script) next(c call) []rule {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[c]++
	if c < callConnect {
		s.counts[callAny]++
	}
	var hit []rule
	for _, r := range s.rules {
		if r.call != c && (r.call != callAny || c >= callConnect) {
			continue
		}
		n := s.counts[r.call]
		if r.nth > 0 && n != r.nth || r.every > 0 && n%r.every != 0 || r.prob > 0 && s.random.Float64() >= r.prob {
			continue
		}
		hit = append(hit, r)
		s.done = append(s.done, fmt.Sprintf("%v#%d %v", c, s.counts[c], r.act))
	}
	return hit
}

// Done lists the faults that were made, in order, such as "read#3 drop".
func (s *Script) Done() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.done...)
}
