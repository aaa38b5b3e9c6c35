package kvcache

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestScripts runs the histories in testdata/scripts. Each is a file of commands with
// their answers; run with -rewrite to write the answers anew. Token lists are
// written as 1-8,20 and may repeat: 7x3 is 7,7,7.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var r *script
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				r = newScript(t, d)
				return fmt.Sprintf("%d available\n", r.c.Available())
			}
			r.out.Reset()
			r.run(t, d)
			if err := r.c.Check(); err != nil {
				fmt.Fprintf(&r.out, "BROKEN: %v\n", err)
			}
			return r.out.String()
		})
	})
}

type script struct {
	c      *Cache
	seqs   map[string]*Seq
	toks   map[string][]Token
	fences map[string]Fence
	leases map[string]LeaseID
	out    strings.Builder
}

func newScript(t *testing.T, d *datadriven.TestData) *script {
	r := &script{seqs: map[string]*Seq{}, toks: map[string][]Token{}, fences: map[string]Fence{}, leases: map[string]LeaseID{}}
	cfg := Config{BlockSize: 4, OnEvict: func(e Eviction) { fmt.Fprintf(&r.out, "evicted: %s\n", e) }}
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "blocks":
			a.Scan(t, 0, &cfg.Blocks)
		case "bs":
			a.Scan(t, 0, &cfg.BlockSize)
		case "in-flight":
			a.Scan(t, 0, &cfg.MaxInFlight)
		case "caching":
			if a.Vals[0] == "off" {
				cfg.Caching = CachingOff
			}
		case "lease-share":
			f, err := strconv.ParseFloat(a.Vals[0], 64)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			cfg.LeaseShare = f
		case "events":
			cfg.Events = Events{Mode: EventsOn, Seed: "0"}
		case "group":
			for _, v := range a.Vals {
				if w, ok := strings.CutPrefix(v, "window"); ok {
					n, err := strconv.Atoi(w)
					if err != nil {
						d.Fatalf(t, "%v", err)
					}
					cfg.Groups = append(cfg.Groups, GroupSpec{Kind: SlidingWindow, Window: n})
				} else {
					cfg.Groups = append(cfg.Groups, GroupSpec{})
				}
			}
		default:
			d.Fatalf(t, "unknown argument %s", a.Key)
		}
	}
	c, err := New(cfg)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	r.c = c
	return r
}

func parseTokens(t *testing.T, d *datadriven.TestData, vals []string) []Token {
	var toks []Token
	for _, v := range vals {
		times := 1
		if a, b, ok := strings.Cut(v, "x"); ok {
			v = a
			times, _ = strconv.Atoi(b)
		}
		from, to, ok := strings.Cut(v, "-")
		if !ok {
			to = from
		}
		a, err1 := strconv.Atoi(from)
		b, err2 := strconv.Atoi(to)
		if err1 != nil || err2 != nil {
			d.Fatalf(t, "bad tokens %q", v)
		}
		for range times {
			for k := a; k <= b; k++ {
				toks = append(toks, Token(k))
			}
		}
	}
	return toks
}

func (r *script) run(t *testing.T, d *datadriven.TestData) {
	var a Alloc
	var ns Namespace
	var toks []Token
	n, limit, keepHit := 0, -1, true
	var names []string
	deadline := Time(0)
	for _, arg := range d.CmdArgs {
		if len(arg.Vals) == 0 {
			names = append(names, arg.Key)
			continue
		}
		num := func(p *int) { arg.Scan(t, 0, p) }
		switch arg.Key {
		case "tokens":
			toks = parseTokens(t, d, arg.Vals)
		case "salt":
			ns.Salt = arg.Vals[0]
		case "lora":
			ns.LoRA = LoRA{ID: 1, Name: arg.Vals[0]}
		case "n":
			num(&n)
		case "limit":
			num(&limit)
		case "computed":
			num(&a.Computed)
		case "external":
			num(&a.External)
		case "new":
			num(&a.New)
		case "lookahead":
			num(&a.Lookahead)
		case "max":
			num(&a.MaxTokens)
		case "in-flight":
			num(&a.InFlight)
		case "reserve":
			num(&a.Reserve)
		case "watermark":
			num(&a.Watermark)
		case "whole":
			num(&a.WholeSequence)
		case "publish":
			if arg.Vals[0] == "later" {
				a.Publish = PublishLater
			}
		case "read":
			keepHit = arg.Vals[0] != "no"
		case "until":
			v := 0
			num(&v)
			deadline = Time(v)
		default:
			d.Fatalf(t, "unknown argument %s", arg.Key)
		}
	}
	first := ""
	if len(names) > 0 {
		first = names[0]
	}
	s := r.seqs[first]
	say := func(format string, args ...any) { fmt.Fprintf(&r.out, format+"\n", args...) }
	done := func(err error) {
		if err != nil {
			say("error: %v", err)
		} else {
			say("ok, %d available", r.c.Available())
		}
	}
	switch d.Cmd {
	case "match":
		m := r.c.Match(ns, toks, limit)
		say("hit %d of path %d", m.Tokens, m.Path)
	case "admit", "need":
		fresh := s == nil
		if fresh {
			s = new(Seq)
			if err := r.c.Attach(s, ns); err != nil {
				d.Fatalf(t, "%v", err)
			}
		}
		if keepHit {
			if limit < 0 {
				limit = len(toks) - 1
			}
			a.Hit = r.c.Match(ns, toks, limit)
		}
		a.Tokens = toks
		if a.New == 0 && a.Publish == PublishNow {
			a.New = len(toks) - a.Hit.Tokens - a.External
		}
		if d.Cmd == "need" {
			need, err := r.c.Need(s, &a)
			say("%+v %v", need, err)
			_ = r.c.Free(s)
			return
		}
		g, err := r.c.Allocate(s, &a)
		if r.grant(s, g, err, &a) {
			r.seqs[first], r.toks[first] = s, toks
		} else {
			_ = r.c.Free(s)
		}
	case "step":
		old := r.toks[first]
		if !d.HasArg("computed") {
			a.Computed = len(old)
		}
		toks = append(slices.Clone(old), toks...)
		a.Tokens = toks
		if a.New == 0 {
			a.New = len(toks) - len(old)
		}
		if s.Covers(a.Computed+a.New, a.Lookahead) {
			say("covered")
			r.toks[first] = toks
			return
		}
		g, err := r.c.Allocate(s, &a)
		if r.grant(s, g, err, &a) {
			r.toks[first] = toks
		}
	case "publish":
		done(r.c.Publish(s, r.toks[first], n))
	case "free":
		done(r.c.Free(s))
	case "fence":
		f, err := r.c.FreeFenced(s)
		r.fences[names[1]] = f
		done(err)
	case "lift":
		done(r.c.Lift(r.fences[first]))
	case "truncate":
		kept, err := r.c.Truncate(s, n)
		say("kept %d", kept)
		r.toks[first] = r.toks[first][:kept]
		done(err)
	case "uncache", "retract":
		var hs []Holder
		var err error
		if d.Cmd == "retract" {
			hs, err = r.c.Retract(s, n, nil)
		} else {
			var ids []BlockID
			for _, v := range names {
				id, _ := strconv.Atoi(v)
				ids = append(ids, BlockID(id))
			}
			hs, err = r.c.Uncache(ids, nil)
		}
		for _, h := range hs {
			for name, s := range r.seqs {
				if s == h.Seq {
					say("%s back to %d tokens, table %v", name, h.Tokens, s.Table(0))
					r.toks[name] = r.toks[name][:h.Tokens]
				}
			}
		}
		done(err)
	case "retain":
		done(r.c.SetRetention(s, Retention{Prioritised: true, Priority: n}))
	case "await":
		if !d.HasArg("until") {
			deadline = Anytime
		}
		id, err := r.c.Await(s, deadline)
		r.leases[names[1]] = id
		done(err)
	case "lease":
		id, result, err := r.c.Lease(s, deadline)
		if err == nil {
			say("%s, %d of %d positions leased", result, r.c.Stats().LeasedPositions, r.c.Stats().LeaseBudget)
			r.leases[names[1]] = id
		}
		done(err)
	case "lease-prefix":
		id, tokens, result, err := leasePrefix(r.c, ns, toks, deadline)
		say("%s for %d tokens", result, tokens)
		r.leases[first] = id
		done(err)
	case "renew":
		done(r.c.Renew(r.leases[first], deadline))
	case "end-lease":
		done(r.c.EndLease(r.leases[first]))
	case "expire":
		say("%d expired", r.c.ExpireLeases(deadline))
	case "common":
		say("%d", r.c.CommonPrefix(s))
	case "reset":
		done(r.c.Reset())
	case "dump":
		_ = r.c.Dump(&r.out)
	case "stats":
		st := r.c.Stats()
		st.TreeBytes = 0
		say("%+v", st)
	case "tick":
		r.c.Tick(deadline)
	case "residency":
		res := r.c.Residency()
		for i, v := range res.Releases {
			if v > 0 {
				say("released up to %d blocks ago: %d", 1<<i-1, v)
			}
		}
		for i, v := range res.Milliseconds {
			if v > 0 {
				say("up to %d ms ago: %d", 1<<i-1, v)
			}
		}
	case "events":
		for _, e := range r.c.TakeEvents(r.c.EventMark(), nil) {
			var hs []string
			for _, h := range e.Hashes {
				hs = append(hs, h.String()[:8])
			}
			parent := "start"
			if !e.Parent.IsZero() {
				parent = e.Parent.String()[:8]
			}
			switch e.Kind {
			case Stored:
				say("%s group %d %v after %s tokens %v", e.Kind, e.Group, hs, parent, e.Tokens)
			case Removed:
				say("%s group %d %v", e.Kind, e.Group, hs)
			default:
				say("%s", e.Kind)
			}
		}
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
}

func (r *script) grant(s *Seq, g Grant, err error, a *Alloc) bool {
	if err != nil {
		fmt.Fprintf(&r.out, "error: %v\n", err)
		return false
	}
	if !g.OK {
		fmt.Fprintf(&r.out, "refused for %s: need %+v, %d available\n", g.Shortage, g.Need, r.c.Available())
		return false
	}
	fmt.Fprintf(&r.out, "hit %d, %d new, %d available, table", a.Hit.Tokens, g.New, r.c.Available())
	for k := range r.c.Groups() {
		fmt.Fprintf(&r.out, " %v", s.Table(k))
	}
	r.out.WriteByte('\n')
	return true
}
