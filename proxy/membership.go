package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
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

// join lets an instance join once it is ready: it answers GET /v1/models. It
// is asked again at the interval of the configuration and given up after the
// configured number of tries.
func (p *Proxy) join(ctx context.Context, kind string, d Decoder) {
	for try := range p.cfg.JoinTries {
		if try > 0 && !sleep(ctx, p.cfg.JoinInterval) {
			return
		}
		ready, cancel := context.WithTimeout(ctx, readyTimeout)
		_, ok := p.modelsOf(ready, d.Addr)
		cancel()
		if !ok {
			continue
		}
		p.mu.Lock()
		var err error
		if kind == "prefill" {
			err = p.router.AddPrefiller(d.Addr)
		} else {
			err = p.addDecoder(d)
		}
		p.mu.Unlock()
		if err != nil {
			p.cfg.Logger.Warn("an instance could not join", "kind", kind, "instance", d.Addr, "err", err)
			return
		}
		p.cfg.Logger.Info("an instance joined", "kind", kind, "instance", d.Addr)
		return
	}
	p.cfg.Logger.Warn("an instance did not become ready and is dropped", "kind", kind, "instance", d.Addr)
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
			if m, err := ReadMembers(strings.NewReader(text)); err != nil {
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

// ReadMembers reads and checks a set of instances.
func ReadMembers(src io.Reader) (Members, error) {
	dec := yaml.NewDecoder(src)
	dec.KnownFields(true)
	var m Members
	if err := dec.Decode(&m); err != nil && !errors.Is(err, io.EOF) {
		return m, err
	}
	return m, m.Validate()
}

// reconcile makes the fleet that of the set.
func (p *Proxy) reconcile(m Members) {
	s := p.Snapshot()
	have := map[string]bool{}
	for _, q := range s.Prefillers {
		have["prefill "+q.Name] = !q.Draining
		if !slices.Contains(m.Prefillers, q.Name) && !q.Draining {
			p.logged("remove", p.remove(change{Type: "prefill"}, q.Name))
		}
	}
	for _, d := range s.Decoders {
		have["decode "+d.Name] = !d.Draining
		if !slices.ContainsFunc(m.Decoders, func(n MemberNumber) bool { return n.Addr == d.Name }) && !d.Draining {
			p.logged("remove", p.remove(change{Type: "decode"}, d.Name))
		}
	}
	for _, a := range m.Prefillers {
		if !have["prefill "+a] {
			p.logged("add", p.add(change{Type: "prefill"}, a))
		}
	}
	for _, n := range m.Decoders {
		if !have["decode "+n.Addr] {
			p.logged("add", p.add(change{Type: "decode", Ranks: n.Ranks, Pool: n.Pool}, n.Addr))
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
