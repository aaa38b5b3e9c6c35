package executor

import (
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/scheduler"
)

// places are the tokens of a step whose logits are computed, where rows have
// drafts to verify: for each row the token that it samples behind and its drafts.
// Without drafts they are the last tokens of the rows, which are among the static
// inputs.
type places struct {
	tokens ascendrt.Tensor // [places] their rows by token; negative: none
	cells  ascendrt.Tensor // [places] the null cell: with drafts the host knows every token
}

// drafts is the number K of drafts that a row may have.
func (e *Executor) drafts() int { return e.c.Graphs.K }

// placesOf is how many places a pass of that shape computes logits for.
func (e *Executor) placesOf(tokens, reqs int) int {
	if e.drafts() == 0 {
		return reqs
	}
	return min(tokens, reqs*(e.drafts()+1))
}

// allocPlaces makes room for them.
func (e *Executor) allocPlaces() error {
	if e.drafts() == 0 {
		return nil
	}
	n := e.placesOf(e.maxTokens, e.maxReqs)
	for _, t := range []*ascendrt.Tensor{&e.places.tokens, &e.places.cells} {
		buf, err := e.alloc(4 * n)
		if err != nil {
			return err
		}
		*t = ascendrt.NewTensor(buf.View(), ascendrt.Int32, n)
	}
	var c ascendrt.Commands
	c.Fill(e.places.tokens.View, 0xff)
	c.Fill(e.places.cells.View, 0)
	if _, _, err := e.stream.Submit(&c); err != nil {
		return err
	}
	for i := range e.outputs {
		var err error
		if e.outputs[i].places, err = e.dev.AllocHost(4 * n); err != nil {
			return err
		}
	}
	return nil
}

// sampled are the token rows and the cells of the first n places.
func (e *Executor) sampled(n int) (tokens, cells ascendrt.Tensor) {
	if e.drafts() == 0 {
		return e.static.Rows.First(n), e.static.StateIn.First(n)
	}
	return e.places.tokens.First(n), e.places.cells.First(n)
}

// place lists the places of a plan's rows: at[i] is the first one of row i.
func (e *Executor) place(p *scheduler.Plan, o *output) {
	o.at = o.at[:0]
	if e.drafts() == 0 {
		for i := range p.Requests {
			o.at = append(o.at, i)
		}
		return
	}
	words := intWords(o.places.Bytes())
	n := 0
	for i := range p.Requests {
		o.at = append(o.at, n)
		if p.Samples[i] == 0 {
			continue
		}
		for tok := p.InputsAt[i+1] - p.Drafts[i] - 1; tok < p.InputsAt[i+1]; tok++ {
			words[n] = tok
			n++
		}
	}
	for ; n < len(words); n++ {
		words[n] = -1
	}
}

// uploadPlaces copies what place has listed to the device.
func (e *Executor) uploadPlaces(c *ascendrt.Commands, o *output) {
	if e.drafts() > 0 {
		c.Copy(e.places.tokens.View, o.places.View())
	}
}

// real are the drafts of a row that stand for something.
func real(p *scheduler.Plan, row int) []scheduler.Token {
	if p.Drafts[row] == 0 {
		return nil
	}
	in := p.Input(row)
	return in[len(in)-int(p.Drafts[row]):][:p.Drafts[row]-p.Placeholders[row]]
}

// verify counts the tokens of a row: drafts count as long as each is the token
// that the model chooses at its place, and then comes one token more. next gives
// the token of the row's place j.
func verify(drafts []scheduler.Token, next func(j int) scheduler.Token) int {
	for j, d := range drafts {
		if next(j) != d {
			return j + 1
		}
	}
	next(len(drafts))
	return len(drafts) + 1
}

// checkDrafts refuses drafts that this executor cannot verify.
func (e *Executor) checkDrafts(p *scheduler.Plan, i int) error {
	switch d := p.Drafts[i]; {
	case d == 0:
		return nil
	case d < 0 || int(d) > e.drafts() || d >= p.Scheduled[i]:
		return planError(p, i, "%d drafts in %d tokens; this executor verifies %d", d, p.Scheduled[i], e.drafts())
	case p.Placeholders[i] < 0 || p.Placeholders[i] > d:
		return planError(p, i, "%d of %d drafts are placeholders", p.Placeholders[i], d)
	}
	for _, tok := range real(p, i) {
		if tok < 0 {
			return planError(p, i, "a draft is not known")
		}
	}
	return nil
}

// validateDrafts reports a configuration whose drafts cannot be verified.
func (c Config) validateDrafts() error {
	if c.Graphs.K > 0 && c.InFlight > 1 {
		return fmt.Errorf("executor: %d drafts with %d steps in flight: the next step's tokens depend on how many are accepted", c.Graphs.K, c.InFlight)
	}
	return nil
}
