package sim

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// FaultKind is something that goes wrong, or too much that comes at once.
type FaultKind uint8

const (
	// DecoderRestart ends a Decoder with all its ranks and everything in its
	// memory; it is back, empty, after For seconds.
	DecoderRestart FaultKind = iota
	// PrefillerLoss ends a Prefiller; it is back after For seconds, with 0 never.
	PrefillerLoss
	// Burst lets what starts within Times × For seconds start within For seconds,
	// and everything after that as much earlier.
	Burst
)

var faultNames = [...]string{DecoderRestart: "decoder-restart", PrefillerLoss: "prefiller-loss", Burst: "burst"}

func (k FaultKind) String() string {
	if int(k) < len(faultNames) {
		return faultNames[k]
	}
	return fmt.Sprintf("FaultKind(%d)", uint8(k))
}

// Fault is one of them in a run.
type Fault struct {
	Kind     FaultKind
	At       float64 // seconds
	For      float64 // seconds
	Instance int     // which Decoder or Prefiller, from 0
	Times    float64 // of a Burst
}

// String writes a fault as ParseFault reads it.
func (f Fault) String() string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	s := f.Kind.String()
	if f.Instance > 0 {
		s += ":" + strconv.Itoa(f.Instance)
	}
	s += "@" + number(f.At)
	if f.For > 0 {
		s += "+" + number(f.For)
	}
	if f.Kind == Burst {
		s += "x" + number(f.Times)
	}
	return s
}

// ParseFault reads KIND[:INSTANCE]@SECONDS[+SECONDS][xTIMES], such as
// decoder-restart@60+15, prefiller-loss:1@60 or burst@60+20x5.
func ParseFault(s string) (Fault, error) {
	bad := func(what string) (Fault, error) {
		return Fault{}, fmt.Errorf("fault %q: %s; want decoder-restart@AT+FOR, prefiller-loss@AT[+FOR] or burst@AT+FORxTIMES, with :INSTANCE behind the kind where it is not the first", s, what)
	}
	head, when, ok := strings.Cut(s, "@")
	if !ok {
		return bad("has no time")
	}
	name, instance, one := strings.Cut(head, ":")
	f := Fault{Kind: FaultKind(len(faultNames))}
	for k, n := range faultNames {
		if n == name {
			f.Kind = FaultKind(k)
		}
	}
	if int(f.Kind) == len(faultNames) {
		return bad("the kind is unknown")
	}
	var err error
	if one {
		if f.Instance, err = strconv.Atoi(instance); err != nil {
			return bad("the instance is no number")
		}
	}
	if f.Kind == Burst {
		var times string
		if when, times, ok = strings.Cut(when, "x"); ok {
			if f.Times, err = strconv.ParseFloat(times, 64); err != nil {
				return bad("the factor is no number")
			}
		}
	}
	at, long, ok := strings.Cut(when, "+")
	if f.At, err = strconv.ParseFloat(at, 64); err != nil {
		return bad("the time is no number")
	}
	if ok {
		if f.For, err = strconv.ParseFloat(long, 64); err != nil {
			return bad("the duration is no number")
		}
	}
	return f, f.check(math.MaxInt, math.MaxInt)
}

// check reports what cannot happen in a cluster of that size, joined.
func (f Fault) check(prefillers, decoders int) error {
	var errs []error
	of := map[FaultKind]int{DecoderRestart: decoders, PrefillerLoss: prefillers, Burst: 1}[f.Kind]
	if f.Instance < 0 || f.Instance >= of {
		errs = append(errs, fmt.Errorf("fault %v: instance %d is not one of %d", f, f.Instance, of))
	}
	if !(f.At >= 0) || math.IsInf(f.At, 0) || !(f.For >= 0) || math.IsInf(f.For, 0) {
		errs = append(errs, fmt.Errorf("fault %v: time and duration must be finite and not negative", f))
	}
	if f.Kind != PrefillerLoss && f.For == 0 {
		errs = append(errs, fmt.Errorf("fault %v: needs a duration", f))
	}
	if f.Kind == Burst && (!(f.Times > 1) || math.IsInf(f.Times, 0)) {
		errs = append(errs, fmt.Errorf("fault %v: the factor must be finite and above 1", f))
	}
	return errors.Join(errs...)
}

// warped is a workload whose starts a Burst moves. Starts keep their order.
type warped struct {
	Workload
	from, length Time
	times        float64
}

func (w warped) Start(session int) Time {
	at := w.Workload.Start(session)
	over := at - w.from
	wide := Time(float64(w.length) * w.times)
	switch {
	case over <= 0:
		return at
	case over < wide:
		return w.from + Time(float64(over)/w.times)
	}
	return at - wide + w.length
}

// Phase says where a turn stands to the first fault of a run.
type Phase uint8

const (
	BeforeFault Phase = iota // answered before it
	AcrossFault              // under way when it came, or the next turn of a session that was open then
	AfterFault
	phases
)

// PhaseCount counts the follow-ups of a phase that were answered.
type PhaseCount struct {
	FollowUps int `json:"follow_ups"`
	Hits      int `json:"hits"`
}

// Share is the part of the follow-ups that hit; 0 without any.
func (p PhaseCount) Share() float64 {
	if p.FollowUps == 0 {
		return 0
	}
	return float64(p.Hits) / float64(p.FollowUps)
}

// FaultCounts is what the faults of a run did.
type FaultCounts struct {
	Cut         int        `json:"answers_cut"`           // after their first token; the client is told, and asks again
	LostTokens  int        `json:"output_tokens_lost"`    // of those
	Broken      int        `json:"legs_broken"`           // requests to an instance that ended without output when it did
	Unreached   int        `json:"legs_not_connected"`    // requests to an instance that was not there
	LostKV      int        `json:"transfers_failed"`      // whose source was gone
	Again       int        `json:"asked_again"`           // times that clients asked again
	GivenUp     int        `json:"given_up"`              // requests of clients that asked too often
	NotSent     int        `json:"not_sent"`              // later turns of their sessions
	QueueBefore int        `json:"queue_peak_before"`     // prompts that wait at Prefillers
	QueueAfter  int        `json:"queue_peak_from_there"` // from the first fault on
	Before      PhaseCount `json:"before"`
	Across      PhaseCount `json:"across"`
	After       PhaseCount `json:"after"`
}

func (f *FaultCounts) phase(p Phase) *PhaseCount {
	return [phases]*PhaseCount{&f.Before, &f.Across, &f.After}[p]
}
