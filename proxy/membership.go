package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-serving/sluice/proxy/route"
)

// Members is a set of instances, as the watched file holds it.
type Members struct {
	Prefillers []string       `yaml:"prefillers"`
	Decoders   []MemberNumber `yaml:"decoders"`
}

// MemberNumber is one Decoder of a set.
type MemberNumber struct {
	Addr  string `yaml:"addr"`
	Ranks int    `yaml:"ranks,omitempty"`
	Pool  string `yaml:"pool,omitempty"`
}

// readyTimeout bounds one readiness request to an instance that joins.
const readyTimeout = 5 * time.Second

// joining is an instance that is asked whether it is ready.
type joining struct {
	cancel context.CancelFunc
	d      Decoder // of a Prefiller only the address
	how    patience
}

// patience says how long an instance that is not ready is asked.
type patience uint8

const (
	someTries  patience = iota // as often as is configured, then it is dropped
	whileInSet                 // for as long as the set of instances has it: an engine may load its model for minutes
)

// joins are the instances that are not ready yet, by kind and address. They
// are guarded by the proxy's lock.
type joins map[[2]string]*joining

// startJoin asks an instance until it is ready, from a goroutine of the
// proxy's own; an earlier such wait for it ends. The lock is held.
func (p *Proxy) startJoin(kind string, d Decoder, how patience) {
	key := [2]string{kind, d.Addr}
	if old := p.joins[key]; old != nil {
		old.cancel()
	}
	ctx, cancel := context.WithCancel(p.ctx)
	j := &joining{cancel: cancel, d: d, how: how}
	p.joins[key] = j
	p.own.Go(func() {
		defer cancel()
		p.join(ctx, kind, d, how)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.joins[key] == j {
			delete(p.joins, key)
		}
	})
}

// join lets an instance join once it is ready: it answers GET /v1/models, be it
// that it wants a client's key for that. It is asked again at the interval of
// the configuration.
func (p *Proxy) join(ctx context.Context, kind string, d Decoder, how patience) {
	for try := 0; how == whileInSet || try < p.cfg.JoinTries; try++ {
		if try > 0 && !sleep(ctx, p.cfg.JoinInterval) {
			return
		}
		ready, cancel := context.WithTimeout(ctx, readyTimeout)
		_, status := p.modelsOf(ready, nil, d.Addr)
		cancel()
		if status != http.StatusOK && status != http.StatusUnauthorized && status != http.StatusForbidden {
			if try+1 == p.cfg.JoinTries && ctx.Err() == nil {
				p.cfg.Logger.Warn("an instance did not become ready", "kind", kind, "instance", d.Addr, "asked again", how == whileInSet)
			}
			continue
		}
		err := p.joined(ctx, kind, d)
		switch {
		case err == nil:
			p.cfg.Logger.Info("an instance joined", "kind", kind, "instance", d.Addr)
		case ctx.Err() != nil: // it was removed meanwhile
		case how == whileInSet && errors.Is(err, route.ErrInstanceEnding):
			continue // its requests of before have to end first
		default:
			p.cfg.Logger.Warn("an instance could not join", "kind", kind, "instance", d.Addr, "err", err)
		}
		return
	}
}

// joined makes a ready instance one of the fleet, unless the wait for it was ended.
func (p *Proxy) joined(ctx context.Context, kind string, d Decoder) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if kind == "prefill" {
		return p.router.AddPrefiller(d.Addr)
	}
	return p.addDecoder(d)
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// watchFile follows the instances file: who is new joins when ready, who is no
// longer there is removed. A file that cannot be read changes nothing.
func (p *Proxy) watchFile(ctx context.Context) {
	var last string
	for {
		raw, err := os.ReadFile(p.cfg.InstancesFile)
		if text := string(raw); err == nil && text != last {
			last = text
			if m, err := readMembers(strings.NewReader(text)); err != nil {
				p.cfg.Logger.Error("the instances file is not used", "file", p.cfg.InstancesFile, "err", err)
			} else {
				p.reconcile(m)
			}
		}
		if !sleep(ctx, p.cfg.WatchEvery) {
			return
		}
	}
}

// Validate joins everything that is wrong with a set.
func (m Members) Validate() error {
	var errs []error
	for _, a := range m.Prefillers {
		if err := CheckAddress(a); err != nil {
			errs = append(errs, fmt.Errorf("prefiller %q: %w", a, err))
		}
	}
	for _, d := range m.Decoders {
		if err := CheckAddress(d.Addr); err != nil {
			errs = append(errs, fmt.Errorf("decoder %q: %w", d.Addr, err))
		}
	}
	return errors.Join(errs...)
}

// readMembers reads and checks a set of instances.
func readMembers(src io.Reader) (Members, error) {
	dec := yaml.NewDecoder(src)
	dec.KnownFields(true)
	var m Members
	if err := dec.Decode(&m); err != nil && !errors.Is(err, io.EOF) {
		return m, err
	}
	return m, m.Validate()
}

// reconcile makes the fleet that of the set. Who is listed and not there is
// asked until it is ready; who is no longer listed is removed, or no longer
// asked. A Decoder that is listed with another number of ranks is removed and
// joins again when its requests have ended.
func (p *Proxy) reconcile(m Members) {
	want := map[[2]string]Decoder{}
	for _, a := range m.Prefillers {
		want[[2]string{"prefill", a}] = Decoder{Addr: a}
	}
	for _, n := range m.Decoders {
		want[[2]string{"decode", n.Addr}] = Decoder(n)
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	for key, j := range p.joins {
		if d, ok := want[key]; !ok || d != j.d {
			j.cancel()
			delete(p.joins, key)
		}
	}
	p.mu.Unlock()
	s := p.Snapshot()
	there := map[[2]string]bool{}
	keep := func(kind, addr string, draining, same bool) {
		_, listed := want[[2]string{kind, addr}]
		there[[2]string{kind, addr}] = listed && same && !draining
		if (!listed || !same) && !draining {
			p.logged("remove", p.remove(change{Type: kind}, addr))
		}
	}
	for _, q := range s.Prefillers {
		keep("prefill", q.Name, q.Draining, true)
	}
	for _, d := range s.Decoders {
		ranks := want[[2]string{"decode", d.Name}].Ranks
		keep("decode", d.Name, d.Draining, ranks == 0 || ranks == len(d.Ranks))
	}
	for _, a := range m.Prefillers {
		if key := [2]string{"prefill", a}; !there[key] {
			p.logged("add", p.begin("prefill", want[key], whileInSet))
		}
	}
	for _, n := range m.Decoders {
		if key := [2]string{"decode", n.Addr}; !there[key] {
			p.logged("add", p.begin("decode", want[key], whileInSet))
		}
	}
}

func (p *Proxy) logged(what string, err error) {
	if err != nil {
		p.cfg.Logger.Warn("an instance of the file could not be changed", "change", what, "err", err)
	}
}

// Membership tells a proxy which instances there are, for instance from leases
// that the instances hold.
type Membership interface {
	// Watch calls changed with the whole set, at once and whenever it changes,
	// until the context ends; changed is called from one goroutine at a time. It
	// gives an error when the set can no longer be followed.
	Watch(ctx context.Context, changed func(Members)) error
}

// watchMembership follows the set of instances. While it cannot be followed the
// instances stay as they are.
func (p *Proxy) watchMembership(ctx context.Context) {
	for {
		err := p.cfg.Membership.Watch(ctx, func(m Members) {
			if err := m.Validate(); err != nil {
				p.cfg.Logger.Error("the set of instances is not used", "err", err)
				return
			}
			p.reconcile(m)
		})
		if ctx.Err() != nil {
			return
		}
		p.cfg.Logger.Warn("the set of instances cannot be followed", "err", err)
		if !sleep(ctx, p.cfg.WatchEvery) {
			return
		}
	}
}
