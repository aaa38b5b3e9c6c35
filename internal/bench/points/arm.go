package points

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-serving/sluice/internal/bench/join"
	"github.com/sluice-serving/sluice/internal/bench/load"
	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/bench/scrape"
	"github.com/sluice-serving/sluice/internal/bench/workload"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/internal/up"
)

// conversations is the frozen workload of an arm, the same for all arms and
// repeats. Everything that the published run measured in tokens but the answers
// is scaled with the prompt; its times are scaled when it is replayed.
func (p *Point) conversations() (*workload.Workload, error) {
	part := func(tokens int) int { return max(1, tokens*p.Prompt/publishedLength) }
	return (&workload.Conversations{
		Name: p.load(), Seed: 19884, Content: workload.Tokens, Sessions: p.Sessions, Turns: p.Turns, Vocab: vocabulary(p.Model),
		First: workload.Range{Low: max(1, p.Prompt-part(34)), High: p.Prompt}, Next: workload.Range{Low: part(40), High: part(200)},
		Arrival: p.Window, Think: p.Think, MaxTokens: p.Output,
	}).Generate()
}

// calibrate gives the time that one first prompt takes at the Prefiller alone:
// that of the results file, so that arms of several runs have the same load,
// else a measured one.
func (r *runner) calibrate(ctx context.Context, l *Line, w *workload.Workload) (time.Duration, error) {
	for _, old := range r.file.Lines() {
		if old.Table == l.Table && old.Model == l.Model && old.Prompt == l.Prompt && old.planned() == l.planned() && old.PromptMs > 0 {
			return fromMilliseconds(old.PromptMs), nil
		}
	}
	if took, ok := r.prompt[r.fleet.setup]; ok {
		return took, nil
	}
	seconds, err := r.atPrefiller(ctx, w, &l.Point)
	if err != nil {
		return 0, err
	}
	took := time.Duration(seconds * float64(time.Second))
	r.prompt[r.fleet.setup] = took
	fmt.Fprintf(r.o.Out, "the Prefiller takes %.2f ms for a first prompt of %d tokens, the published one took %v: the times (%v of arrivals, %v to think) are divided by %.2f\n",
		milliseconds(took), l.Prompt, publishedPrompt, l.Window, l.Think, float64(publishedPrompt)/float64(took))
	return took, nil
}

// shortestWatch is how long the Prefiller's queue is watched, however soon the
// last session has arrived: a page takes a moment to read.
const shortestWatch = 500 * time.Millisecond

// arm measures one arm of append-prefill.
func (r *runner) arm(ctx context.Context, d *decoder, l *Line) error {
	w, err := l.conversations()
	if err != nil {
		return err
	}
	l.Workload = w.Hash()
	routing := up.AppendPrefill
	if l.Arm == ArmPD {
		routing = up.OrdinaryPD
	}
	took, err := r.calibrate(ctx, l, w)
	if err != nil {
		return err
	}
	if err := r.warm(ctx, d, &l.Point, l.Prompt, routing); err != nil {
		return err
	}
	if err := r.probe(ctx, d, l); err != nil {
		return fmt.Errorf("probes: %w", err)
	}
	if l.Alone, err = r.alone(ctx, d, &l.Point, l.Prompt, routing, took); err != nil {
		return err
	}
	if err := r.fleet.forget(ctx, d.child.URL()); err != nil { // what warmed up
		return err
	}
	l.PromptMs, l.Factor = milliseconds(took), float64(publishedPrompt)/float64(took)
	scale := 1 / l.Factor
	prefix := fmt.Sprintf("%s-%d-", l.Arm, time.Now().UnixNano())
	last := l.Turns - 1
	records, err := r.measured(ctx, d, l, func(ctx context.Context) ([]measure.Record, error) {
		window := time.Duration(scale * float64(w.ArrivalWindow()))
		queue, err := scrape.WatchPeak(ctx, r.fleet.client, r.fleet.prefiller.URL()+"/metrics", "vllm:num_requests_waiting", max(window/150, 10*time.Millisecond), max(window, shortestWatch))
		if err != nil {
			return nil, fmt.Errorf("the Prefiller's queue: %w", err)
		}
		records, err := r.replay(ctx, d, w, &l.Point, routing, load.Config{
			Prefix: prefix, CacheSalt: prefix, TimeScale: scale,
			Prepare: func(_ string, turn int, call *load.Call) {
				if turn == last {
					call.Header.Set("X-Session-End", "true")
				}
			},
		})
		l.QueuePeak = queue.Stop().Value
		return records, err
	})
	if err != nil {
		return err
	}
	l.Answers = make([]string, len(records))
	for i := range records {
		l.Answers[i] = checksum(&records[i])
	}
	return r.joined(ctx, d, l, records)
}

// probe shows, once for a Decoder that takes append attempts, that it serves a
// follow-up that it has the prefix of, and that it refuses one whose prefix it
// does not have, which then takes the other route.
func (r *runner) probe(ctx context.Context, d *decoder, l *Line) error {
	if l.Arm == ArmPD || d.probed {
		return nil
	}
	w, err := (&workload.Conversations{
		Name: "probe", Seed: 7, Content: workload.Tokens, Sessions: 2, Turns: 2, Vocab: vocabulary(l.Model), MaxTokens: 4,
		First: workload.Range{Low: l.Prompt, High: l.Prompt}, Next: workload.Range{Low: 8, High: 8},
	}).Generate()
	if err != nil {
		return err
	}
	hit, miss := w.Sessions[0].ID, w.Sessions[1].ID
	prefix := fmt.Sprintf("probe-%s-%d-", l.Arm, time.Now().UnixNano())
	records, err := r.replay(ctx, d, w, &l.Point, up.AppendPrefill, load.Config{
		Prefix: prefix, CacheSalt: prefix, MaxConcurrency: 1,
		Prepare: func(session string, turn int, call *load.Call) {
			if turn == 0 {
				return
			}
			call.Header.Set("X-Session-End", "true")
			if req, ok := call.Body.(*openai.CompletionRequest); ok && session == miss {
				req.CacheSalt += "other" // a namespace in which nothing is cached
			}
		},
	})
	if err != nil {
		return err
	}
	rows, problems, err := r.traced(ctx, d, l, records)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return errors.New(problems[0])
	}
	for i := range rows {
		row := &rows[i]
		if want := records[i].Session == hit; row.FollowUp && (row.Hit() != want || row.Fallback() == want) {
			return fmt.Errorf("%s took the route %q (%s)", row.RequestID, row.Route, row.Reason)
		}
	}
	fmt.Fprintf(r.o.Out, "  %s: a warm follow-up is a hit, one in another namespace a refusal and a fallback\n", d.name)
	d.probed = true
	return nil
}

// joinTimeout is how long the traces of a point may take to be written.
const joinTimeout = 5 * time.Second

// traced joins the traces of proxy and engines about requests, and says what in
// them contradicts itself.
func (r *runner) traced(ctx context.Context, d *decoder, l *Line, records []measure.Record) (rows []join.Row, problems []string, err error) {
	page, err := r.fleet.page(ctx, d.child)
	if err != nil {
		return nil, nil, err
	}
	expect := join.Expect{AppendPrefill: l.Arm != ArmPD, BytesPerBlock: int64(page.Max("sluice_kv_block_bytes"))}
	ids := make([]string, len(records))
	followUp := make(map[string]bool, len(records))
	for i := range records {
		ids[i] = records[i].RequestID
		followUp[ids[i]] = records[i].FollowUp()
	}
	for deadline := time.Now().Add(joinTimeout); ; {
		traces, err := join.ReadFiles(d.traces...)
		if err != nil {
			return nil, nil, err
		}
		rows = traces.Rows(ids, func(id string) bool { return followUp[id] })
		problems = join.Check(rows, expect)
		if len(problems) == 0 || time.Now().After(deadline) {
			return rows, problems, nil
		}
		select { // the last lines may still be on their way
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// joined takes what the traces say about the requests of an arm.
func (r *runner) joined(ctx context.Context, d *decoder, l *Line, records []measure.Record) error {
	rows, problems, err := r.traced(ctx, d, l, records)
	if err != nil {
		return err
	}
	for i := range rows {
		switch {
		case rows[i].Hit():
			l.Hits++
		case rows[i].Fallback():
			l.Fallbacks++
			if l.Refusals == nil {
				l.Refusals = map[string]int{}
			}
			l.Refusals[rows[i].Reason]++
		}
	}
	if l.Contradicts = len(problems); l.Contradicts > 0 {
		l.Contradiction = problems[0]
	}
	return nil
}
