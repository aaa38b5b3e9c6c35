package scheduler

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/kvcache"
)

// noDecision stands in for graph choices, which recordings leave out.
var noDecision graphs.Decision

// Divergence is where a replay does something else than was recorded.
type Divergence struct {
	Line     int    // of the recording
	Op       string // the operation
	What     string // field of the plan, or what else differs
	Recorded string
	Here     string
}

func (d *Divergence) String() string {
	return fmt.Sprintf("line %d, %s: %s\n  recorded %s\n  here     %s", d.Line, d.Op, d.What, d.Recorded, d.Here)
}

// Replayed sums a replay up.
type Replayed struct {
	Lines, Plans, Outputs int
	Divergence            *Divergence // nil if every plan and output is equal
}

// Replay tells a new scheduler what a recording says its scheduler was told,
// and compares every plan, byte by byte, and every output. It stops at the
// first difference. An error is a recording that cannot be read.
func Replay(r io.Reader) (Replayed, error) {
	var sum Replayed
	in := bufio.NewReaderSize(r, 1<<16)
	var p *player
	for {
		text, err := in.ReadBytes('\n')
		if len(bytes.TrimSpace(text)) > 0 {
			sum.Lines++
			var l entry
			if err := json.Unmarshal(text, &l); err != nil {
				return sum, fmt.Errorf("recording, line %d: %w", sum.Lines, err)
			}
			if p == nil {
				if p, err = newPlayer(&l); err != nil {
					return sum, fmt.Errorf("recording, line %d: %w", sum.Lines, err)
				}
			} else if err := p.play(&l, &sum); err != nil {
				return sum, fmt.Errorf("recording, line %d: %w", sum.Lines, err)
			}
			if sum.Divergence != nil {
				return sum, nil
			}
		}
		if errors.Is(err, io.EOF) {
			if p == nil {
				return sum, errors.New("the recording is empty")
			}
			return sum, nil
		}
		if err != nil {
			return sum, err
		}
	}
}

type player struct {
	s      *Scheduler
	conn   *playedConnector
	flight []*Plan
}

func newPlayer(l *entry) (*player, error) {
	if l.Op != "begin" || l.Scheduler == nil || l.Cache == nil {
		return nil, errors.New("does not begin with a configuration")
	}
	if l.Format != RecordFormat {
		return nil, fmt.Errorf("has format %d, not %d", l.Format, RecordFormat)
	}
	cache, err := kvcache.New(kvcache.Config{
		Blocks: l.Cache.Blocks, BlockSize: l.Cache.BlockSize, Groups: l.Cache.Groups, Caching: l.Cache.Caching,
		MaxInFlight: l.Cache.MaxInFlight, LeaseShare: l.Cache.LeaseShare,
	})
	if err != nil {
		return nil, err
	}
	p := &player{}
	var opts []Option
	if l.Connector {
		p.conn = &playedConnector{delivery: l.Delivery}
		opts = append(opts, WithConnector(p.conn))
	}
	p.s, err = New(*l.Scheduler, cache, opts...)
	return p, err
}

// play does one line. Answers are kept for the operation that follows them.
func (p *player) play(l *entry, sum *Replayed) error {
	differ := func(what string, recorded, here any) {
		if sum.Divergence == nil {
			sum.Divergence = &Divergence{sum.Lines, l.Op, what, fmt.Sprint(recorded), fmt.Sprint(here)}
		}
	}
	same := func(what string, recorded, here any) {
		if !reflect.DeepEqual(recorded, here) {
			differ(what, recorded, here)
		}
	}
	switch l.Op {
	case "answer":
		if p.conn == nil {
			return errors.New("an answer of a connector that is not there")
		}
		p.conn.answers = append(p.conn.answers, l)
		return nil
	case "add":
		if l.Request == nil {
			return errors.New("no request")
		}
		id, err := p.s.Add(*l.Request)
		same("error", error(nil), err)
		same("handle", l.ID, id)
	case "finish":
		same("error", error(nil), p.s.Finish(l.ID, FinishReason(l.Value)))
	case "deliver":
		p.s.Deliver(l.Events...)
	case "plan":
		plan := p.s.Plan(l.Now)
		if plan == nil {
			differ("plan", "a plan", "none: too many are in flight")
			break
		}
		p.flight = append(p.flight, plan)
		sum.Plans++
		if here := encodePlain(plan); !bytes.Equal(here, l.Plan) {
			if err := p.explain(l.Plan, here, differ); err != nil {
				return err
			}
		}
	case "apply":
		if l.Result == nil || len(p.flight) == 0 || p.flight[0].Seq != l.Seq {
			return fmt.Errorf("plan %d is not the oldest in flight", l.Seq)
		}
		outs, err := p.s.Apply(p.flight[0], *l.Result)
		p.flight = p.flight[1:]
		same("error", error(nil), err)
		sum.Outputs += len(outs)
		same("number of outputs", len(l.Outputs), len(outs))
		for i := range min(len(outs), len(l.Outputs)) {
			here := outLine{outs[i].Request, slices.Clone(outs[i].Tokens), outs[i].Finish, outs[i].Refusal.Reason}
			if len(here.Tokens) == 0 {
				here.Tokens = nil
			}
			same("output", l.Outputs[i], here)
		}
	case "pause":
		p.s.SetPause(Pause(l.Value))
	case "throttle":
		p.s.SetThrottle(Throttle(l.Value))
	case "reset":
		_ = p.s.ResetCache(Reset(l.Value)) // a refusal is recorded like a success: it changes the queues
	case "grammar":
		same("error", error(nil), p.s.SetGrammar(l.ID, GrammarState(l.Value)))
	case "drain":
		p.s.Drain()
	case "agree":
		if l.Agreement == nil {
			return errors.New("no agreement")
		}
		p.s.SetAgreement(*l.Agreement)
	case "turn":
		_ = p.s.EndTurn(l.Text, TurnEnd(l.Value)) // an unknown session is recorded like a known one
	default:
		return fmt.Errorf("unknown operation %q", l.Op)
	}
	if p.conn != nil {
		if p.conn.err != nil {
			differ("question", "another", p.conn.err)
		} else if n := len(p.conn.answers); n > 0 {
			differ("questions to the connector", fmt.Sprintf("%d more, the first %s of %s", n, p.conn.answers[0].Text, p.conn.answers[0].ID), "none")
		}
	}
	return nil
}

// explain finds the first field in which two plans differ.
func (p *player) explain(recorded, here []byte, differ func(string, any, any)) error {
	var a, b Plan
	if err := a.UnmarshalBinary(recorded); err != nil {
		return err
	}
	if err := b.UnmarshalBinary(here); err != nil {
		return err
	}
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range x.NumField() {
		if f := x.Type().Field(i); f.IsExported() && !reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			differ(fmt.Sprintf("field %s of plan %d", f.Name, b.Seq), x.Field(i).Interface(), y.Field(i).Interface())
			return nil
		}
	}
	differ("encoding", len(recorded), len(here))
	return nil
}

// Ring keeps the last lines that were written to it, for a recorder whose
// history is only of interest when something has gone wrong.
type Ring struct {
	lines [][]byte
	next  int
	full  bool
}

// NewRing keeps n lines.
func NewRing(n int) *Ring { return &Ring{lines: make([][]byte, max(n, 1))} }

// Write keeps one line. It never fails.
func (r *Ring) Write(p []byte) (int, error) {
	r.lines[r.next] = append(r.lines[r.next][:0], p...)
	if r.next++; r.next == len(r.lines) {
		r.next, r.full = 0, true
	}
	return len(p), nil
}

// WriteTo writes the lines, oldest first.
func (r *Ring) WriteTo(w io.Writer) (int64, error) {
	var total int64
	write := func(lines [][]byte) error {
		for _, l := range lines {
			n, err := w.Write(l)
			total += int64(n)
			if err != nil {
				return err
			}
		}
		return nil
	}
	if r.full {
		if err := write(r.lines[r.next:]); err != nil {
			return total, err
		}
	}
	err := write(r.lines[:r.next])
	return total, err
}
