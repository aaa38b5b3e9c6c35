package scheduler

import "github.com/sluice-serving/sluice/graphs"

// fill writes the rows into the plan and advances the requests.
func (s *Scheduler) fill(p *Plan, b *budget) {
	a := s.alloc
	rows, tokens := 0, 0
	for i := range s.rows {
		if d := &s.rows[i]; !d.gone {
			rows++
			tokens += int(d.n)
		}
	}
	groups := int(s.groups)
	p.Requests = sized(a, p.Requests, rows)
	p.Kinds = sized(a, p.Kinds, rows)
	p.Scheduled = sized(a, p.Scheduled, rows)
	p.Drafts = sized(a, p.Drafts, rows)
	p.Placeholders = sized(a, p.Placeholders, rows)
	p.Computed = sized(a, p.Computed, rows)
	p.Prefill = sized(a, p.Prefill, rows)
	p.Outputs = sized(a, p.Outputs, rows)
	p.Samples = sized(a, p.Samples, rows)
	p.LocalHits = sized(a, p.LocalHits, rows)
	p.ExternalHits = sized(a, p.ExternalHits, rows)
	p.Inputs = room(a, p.Inputs, tokens)
	p.InputsAt = sized(a, p.InputsAt, rows+1)
	p.KnownAt = sized(a, p.KnownAt, rows+1)
	p.TableFrom = sized(a, p.TableFrom, rows*groups)
	p.BlocksAt = sized(a, p.BlocksAt, rows*groups+1)
	p.InputsAt[0], p.KnownAt[0], p.BlocksAt[0] = 0, 0, 0
	clear(p.Drafts)
	clear(p.Placeholders)
	clear(p.LocalHits)
	clear(p.ExternalHits)
	async := s.cfg.Scheduling == Async
	row := 0
	for i := range s.rows {
		d := &s.rows[i]
		if d.gone {
			continue
		}
		r := d.r
		total, from, to := r.total(), r.computed, r.computed+d.n
		p.Requests[row] = r.id
		p.Kinds[row] = d.kind
		p.Scheduled[row] = d.n
		if d.drafts > 0 {
			p.Drafts[row] = d.drafts
			p.Placeholders[row] = d.placeholders
		}
		p.Computed[row] = from
		p.Prefill[row] = r.prefill
		p.Outputs[row] = r.outputs() + r.placeholders
		if d.kind != RowRunning {
			p.LocalHits[row] = d.local
			p.ExternalHits[row] = d.external
		}
		switch {
		case from+1 == to && to == total:
			p.Inputs = append(p.Inputs, r.last)
		case from+1 == to && from >= total && r.drafts == 0:
			p.Inputs = append(p.Inputs, Unknown)
		default:
			p.inputs(d)
		}
		p.InputsAt[row+1] = int32(len(p.Inputs))
		if d.kind == RowNew && s.cfg.Executor == NewResume {
			p.Known = add(a, p.Known, r.tokens...)
		}
		p.KnownAt[row+1] = int32(len(p.Known))
		for g := range groups {
			p.TableFrom[row*groups+g] = d.from
			if d.grown {
				p.Blocks = add(a, p.Blocks, r.seq.Table(g)[d.from:]...)
			}
			p.BlocksAt[row*groups+g+1] = int32(len(p.Blocks))
		}
		p.Total += d.n

		r.computed = to
		r.inFlight += d.n
		r.lastSeq = p.Seq
		r.chunk = to < total+r.placeholders
		if r.drafts > 0 {
			r.drafts = 0
			r.draftTokens = r.draftTokens[:0]
		}
		p.Samples[row] = 0
		if !r.chunk {
			p.Samples[row] = 1
			r.prefilling = false
			if r.grammar {
				var waits uint8
				if r.placeholders > 0 {
					waits = 1
				}
				p.GrammarRows = add(a, p.GrammarRows, int32(row))
				p.GrammarWaits = add(a, p.GrammarWaits, waits)
			}
			if async {
				r.placeholders += 1 + d.drafts
				r.drafts = b.drafts
			}
		}
		row++
	}
	p.LoRAs, p.NextDrafts = int32(len(s.loras)), b.drafts
	p.CommonPrefix = sized(a, p.CommonPrefix, groups)
	clear(p.CommonPrefix)
	if len(s.running) > 0 {
		p.CommonPrefix[0] = int32(s.cache.CommonPrefix(&s.running[0].seq))
	}
	if s.graph != nil && rows > 0 {
		p.Verdicts = sized(a, p.Verdicts, rows)
		step := graphs.Step{LoRAs: p.LoRAs, FewerDrafts: int32(s.cfg.Drafts) - b.drafts}
		p.Graph = s.graph.Dispatch(p.GraphRows(), step, p.Verdicts)
	}
}

// inputs writes the token ids of a row that is more than one known token.
// There is room for them.
func (p *Plan) inputs(d *rowDraft) {
	r := d.r
	total, from, to := r.total(), r.computed, r.computed+d.n
	if from < total {
		p.Inputs = append(p.Inputs, r.tokens[from:min(to, total)]...)
	}
	for i := max(from, total); i < to; i++ {
		tok := Unknown
		if j := int(i - total - r.placeholders); d.placeholders == 0 && j >= 0 && j < len(r.draftTokens) {
			tok = r.draftTokens[j]
		}
		p.Inputs = append(p.Inputs, tok)
	}
}
