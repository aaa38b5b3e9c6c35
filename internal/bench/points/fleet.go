package points

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-serving/sluice/internal/bench/scrape"
	"github.com/sluice-serving/sluice/internal/up"
)

// settleTimeout is how long blocks may stay held after a point.
const settleTimeout = 15 * time.Second

// fleet is the processes that run now. One goroutine uses it.
type fleet struct {
	o      *Options
	sup    *up.Supervisor
	client *http.Client

	setup     setup
	prefiller *up.Child
	decoders  []*decoder // the one that was used last comes last
	serial    int        // makes the names of processes unique
	alone     bool       // Decoders did not come up beside each other
}

// decoder is one Decoder with the proxies in front of it.
type decoder struct {
	variant string
	name    string
	child   *up.Child
	proxies map[up.Routing]*up.Child
	traces  []string
	warm    map[int]bool      // by length of the prompt
	alone   map[string]*Alone // by shape and route
	probed  bool
}

// stop ends every process, all at once.
func (f *fleet) stop() error {
	err := f.end(f.decoders...)
	f.decoders = nil
	if f.prefiller != nil {
		err = errors.Join(err, f.sup.Stop(f.prefiller))
		f.prefiller = nil
	}
	return err
}

// end stops Decoders and their proxies.
func (f *fleet) end(list ...*decoder) error {
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for _, d := range list {
		wg.Go(func() {
			for _, p := range d.proxies {
				err := f.sup.Stop(p)
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
			err := f.sup.Stop(d.child)
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// ensure starts what is missing of a setup's Prefiller and of the Decoders of
// these kinds, all side by side, and ends those that would be too many. The
// first kind is needed now; the others are started if there is room. If they do
// not come up beside each other, they are started one at a time from then on.
func (f *fleet) ensure(ctx context.Context, s setup, variants []string) error {
	if f.prefiller == nil || f.setup != s {
		if err := f.stop(); err != nil {
			return err
		}
		f.setup, f.alone = s, false
	}
	most := s.together
	if f.alone {
		most = 1
	}
	variants = variants[:min(len(variants), most)]
	missing := slices.DeleteFunc(slices.Clone(variants), func(v string) bool { return f.find(v) != nil })
	if len(missing) == 0 && f.prefiller != nil {
		return nil
	}
	begun := time.Now()
	var drop []*decoder
	for len(f.decoders)-len(drop)+len(missing) > most {
		at := slices.IndexFunc(f.decoders, func(d *decoder) bool { return !slices.Contains(variants, d.variant) && !slices.Contains(drop, d) })
		drop = append(drop, f.decoders[at])
	}
	f.decoders = slices.DeleteFunc(f.decoders, func(d *decoder) bool { return slices.Contains(drop, d) })
	if err := f.end(drop...); err != nil {
		return err
	}
	if err := f.start(ctx, &s, missing); err != nil {
		if ctx.Err() != nil || len(variants) == 1 && len(f.decoders) == 0 {
			return err
		}
		fmt.Fprintf(f.o.Out, "%d Decoders did not come up beside each other, they are started one at a time: %v\n", len(f.decoders)+len(missing), err)
		if err := f.stop(); err != nil {
			return err
		}
		f.alone = true
		return f.ensure(ctx, s, variants[:1])
	}
	fmt.Fprintf(f.o.Out, "%s: %d Decoders and the Prefiller are ready after %.1f s (%s)\n", s.model, len(f.decoders), time.Since(begun).Seconds(), s.Sizes)
	return f.describe(ctx)
}

// start starts the Prefiller, if there is none, and Decoders of these kinds;
// what has come up is the fleet's even when something else has not.
func (f *fleet) start(ctx context.Context, s *setup, kinds []string) error {
	group, inner := errgroup.WithContext(ctx)
	if f.prefiller == nil {
		f.serial++
		c := f.o.cluster(s, "")
		command := c.PrefillerCommand(fmt.Sprintf("p%d", f.serial))
		group.Go(func() error {
			child, err := f.sup.Start(inner, command)
			if err == nil {
				f.prefiller = child
			}
			return err
		})
	}
	started := make([]*decoder, len(kinds))
	for i, v := range kinds {
		f.serial++
		d := &decoder{variant: v, name: fmt.Sprintf("d%d-%s", f.serial, v), proxies: map[up.Routing]*up.Child{}, warm: map[int]bool{}}
		started[i] = d
		c := f.o.cluster(s, v)
		d.traces = append(d.traces, c.TraceFile(d.name))
		group.Go(func() (err error) {
			d.child, err = f.sup.Start(inner, c.DecoderCommand(d.name))
			return err
		})
	}
	err := group.Wait()
	for _, d := range started {
		if d.child != nil {
			f.decoders = append(f.decoders, d)
		}
	}
	for _, d := range started {
		if err != nil {
			break
		}
		err = f.front(ctx, d)
	}
	return err
}

// front starts the proxies of a Decoder.
func (f *fleet) front(ctx context.Context, d *decoder) error {
	c := f.o.cluster(&f.setup, d.variant)
	routings := []up.Routing{up.OrdinaryPD}
	if f.setup.table == AppendPrefill {
		routings[0] = up.AppendPrefill
		if d.variant == ArmPlain {
			routings = append(routings, up.OrdinaryPD)
		}
	}
	for i, routing := range routings {
		name := fmt.Sprintf("%s-proxy%d", d.name, i)
		command, err := c.ProxyCommand(name, routing, f.prefiller, d.child)
		if err != nil {
			return err
		}
		child, err := f.sup.Start(ctx, command)
		if err != nil {
			return err
		}
		d.proxies[routing] = child
		d.traces = append(d.traces, c.TraceFile(name))
	}
	return nil
}

// find is the running Decoder of a kind; nil if there is none.
func (f *fleet) find(variant string) *decoder {
	for _, d := range f.decoders {
		if d.variant == variant {
			return d
		}
	}
	return nil
}

// use is find, and notes that the Decoder is used.
func (f *fleet) use(variant string) *decoder {
	d := f.find(variant)
	f.decoders = append(slices.DeleteFunc(f.decoders, func(x *decoder) bool { return x == d }), d)
	return d
}

// describe says what the engines say about themselves.
func (f *fleet) describe(ctx context.Context) error {
	engines := []*up.Child{f.prefiller}
	for _, d := range f.decoders {
		engines = append(engines, d.child)
	}
	for _, c := range engines {
		page, err := f.page(ctx, c)
		if err != nil {
			return err
		}
		for _, s := range page["sluice_engine_info"] {
			fmt.Fprintf(f.o.Out, "  %-28s %s scheduling, model runner %s, %s, device %s, KV by %s\n", c.Name(), s.Labels["scheduling"], s.Labels["runner"], s.Labels["role"], s.Labels["device"], transport(f.o.Extra))
		}
	}
	return nil
}

func (f *fleet) page(ctx context.Context, c *up.Child) (scrape.Page, error) {
	return scrape.Fetch(ctx, f.client, c.URL()+"/metrics")
}

func (f *fleet) pages(ctx context.Context, d *decoder) (pages, error) {
	p, err := f.page(ctx, f.prefiller)
	if err != nil {
		return pages{}, err
	}
	q, err := f.page(ctx, d.child)
	return pages{p, q}, err
}

// settle waits until neither engine holds a block, and gives their metrics and
// the blocks that are still held when it gives up.
func (f *fleet) settle(ctx context.Context, d *decoder) (pages, float64, error) {
	held := map[string]string{"state": "held"}
	for deadline := time.Now().Add(settleTimeout); ; {
		now, err := f.pages(ctx, d)
		if err != nil {
			return pages{}, 0, err
		}
		n := now.prefiller.Sum("sluice_kv_blocks", held) + now.decoder.Sum("sluice_kv_blocks", held)
		if n == 0 || time.Now().After(deadline) {
			return now, n, nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return pages{}, 0, ctx.Err()
		}
	}
}

// forget empties a Decoder's prefix cache, so that every point begins alike. It
// waits while something still holds blocks, such as a save of the point before.
func (f *fleet) forget(ctx context.Context, url string) error {
	for end := time.Now().Add(settleTimeout); ; {
		status, text, err := f.reset(ctx, url)
		switch {
		case err != nil:
			return fmt.Errorf("reset the prefix cache: %w", err)
		case status == http.StatusOK:
			return nil
		case status != http.StatusConflict || time.Now().After(end):
			return fmt.Errorf("reset the prefix cache: status %d: %s", status, text)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (f *fleet) reset(ctx context.Context, url string) (status int, text []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/reset_prefix_cache", nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	text, err = io.ReadAll(io.LimitReader(resp.Body, 1<<12))
	return resp.StatusCode, text, errors.Join(err, resp.Body.Close())
}
