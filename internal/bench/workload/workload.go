package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Version is the version of the file format.
const Version = 1

// Workload is a frozen load: everything that is decided before the run.
type Workload struct {
	Version  int       `json:"version"`
	Name     string    `json:"name"`
	Seed     uint64    `json:"seed"`
	Sessions []Session `json:"sessions"` // by arrival
}

// Session is one conversation.
type Session struct {
	ID      string        `json:"id"`
	Arrival time.Duration `json:"arrival_ns"` // since the start of the workload
	System  string        `json:"system,omitempty"`
	Parent  string        `json:"parent,omitempty"` // session that it was forked from
	Turns   []Turn        `json:"turns"`
}

// Turn is one user input, either Text or Tokens.
//
// With Keep the turn says what the whole prompt is: the first Keep tokens of the
// session's prompt before it, without the reply to that, and then Tokens.
type Turn struct {
	Think     time.Duration `json:"think_ns"` // after the end of the turn before; 0 for the first
	Text      string        `json:"text,omitempty"`
	Tokens    []int32       `json:"tokens,omitempty"`
	Keep      *int          `json:"keep,omitempty"`
	MaxTokens int           `json:"max_tokens"` // output limit, tokens
}

// Requests is the number of requests of the workload.
func (w *Workload) Requests() int {
	n := 0
	for i := range w.Sessions {
		n += len(w.Sessions[i].Turns)
	}
	return n
}

// FollowUps is the number of requests that continue a session.
func (w *Workload) FollowUps() int { return w.Requests() - len(w.Sessions) }

// ArrivalWindow is the arrival of the last session.
func (w *Workload) ArrivalWindow() time.Duration {
	var last time.Duration
	for i := range w.Sessions {
		last = max(last, w.Sessions[i].Arrival)
	}
	return last
}

// Cut is the workload with at most the given number of turns in each session.
// It shares the turns with w.
func (w *Workload) Cut(turns int) *Workload {
	out := *w
	out.Sessions = slices.Clone(w.Sessions)
	for i := range out.Sessions {
		s := &out.Sessions[i]
		s.Turns = s.Turns[:min(turns, len(s.Turns))]
	}
	return &out
}

// Hash is the SHA-256 of the workload's encoding, in hex.
func (w *Workload) Hash() string {
	h := sha256.New()
	if err := w.Write(h); err != nil { // only a type without encoding could fail, and there is none
		panic(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Write encodes the workload as one JSON document; equal workloads give equal bytes.
func (w *Workload) Write(dst io.Writer) error {
	enc := json.NewEncoder(dst)
	enc.SetEscapeHTML(false)
	return enc.Encode(w)
}

// Read decodes and checks a workload.
func Read(src io.Reader) (*Workload, error) {
	dec := json.NewDecoder(src)
	dec.DisallowUnknownFields()
	w := new(Workload)
	if err := dec.Decode(w); err != nil {
		return nil, fmt.Errorf("workload file: %w", err)
	}
	if err := w.Validate(); err != nil {
		return nil, err
	}
	return w, nil
}

// Validate reports everything that is wrong with the workload.
func (w *Workload) Validate() error {
	var errs []error
	if w.Version != Version {
		errs = append(errs, fmt.Errorf("workload version %d is not %d", w.Version, Version))
	}
	if len(w.Sessions) == 0 {
		errs = append(errs, errors.New("workload has no sessions"))
	}
	seen := make(map[string]bool, len(w.Sessions))
	for i := range w.Sessions {
		s := &w.Sessions[i]
		switch {
		case s.ID == "":
			errs = append(errs, fmt.Errorf("session %d has no id", i))
		case seen[s.ID]:
			errs = append(errs, fmt.Errorf("session id %q occurs twice", s.ID))
		}
		seen[s.ID] = true
		if s.Arrival < 0 {
			errs = append(errs, fmt.Errorf("session %q: arrival %v is negative", s.ID, s.Arrival))
		}
		if len(s.Turns) == 0 {
			errs = append(errs, fmt.Errorf("session %q has no turns", s.ID))
		}
		held := 0 // tokens of the prompt before; -1: its replies are not known yet
		for j := range s.Turns {
			t := &s.Turns[j]
			err := t.validate()
			switch {
			case t.Keep == nil:
				held = -1
			case held < 0:
				err = errors.Join(err, errors.New("keeps a part of a prompt that is not known before the run"))
			case *t.Keep < 0 || *t.Keep > held:
				err = errors.Join(err, fmt.Errorf("keeps %d tokens of a prompt of %d", *t.Keep, held))
			default:
				held = *t.Keep + len(t.Tokens)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("session %q turn %d: %w", s.ID, j, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (t *Turn) validate() error {
	switch {
	case t.Keep != nil && (t.Text != "" || *t.Keep+len(t.Tokens) == 0):
		return errors.New("a whole prompt consists of tokens, at least one")
	case t.Keep == nil && (t.Text == "") == (len(t.Tokens) == 0):
		return errors.New("needs either text or tokens")
	case t.Think < 0:
		return fmt.Errorf("think time %v is negative", t.Think)
	case t.MaxTokens < 1:
		return fmt.Errorf("max_tokens %d is below 1", t.MaxTokens)
	}
	return nil
}
