package pd

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// PeerError reports a peer that a request names and that this engine does not
// deal with: whoever names a peer decides whose KV is cached here.
type PeerError struct {
	Peer   Endpoint
	Reason string
}

func (e *PeerError) Error() string {
	return fmt.Sprintf("peer %q at %s is not allowed: %s", e.Peer.EngineID, net.JoinHostPort(e.Peer.Host, strconv.Itoa(e.Peer.Port)), e.Reason)
}

// Peers are the engines that requests may name. The zero value has none.
type Peers struct {
	all      bool
	hosts    map[string]bool // any port
	ports    map[string]bool // host:port
	networks []netip.Prefix
}

// ParsePeers reads a list whose elements are a host ("10.0.0.5", "p0.local"),
// a host with a port ("10.0.0.5:14579"), a network ("10.0.0.0/24"), or "*" for
// every peer. Names are compared as they are written, not resolved.
func ParsePeers(list []string) (*Peers, error) {
	p := &Peers{hosts: map[string]bool{}, ports: map[string]bool{}}
	for _, s := range list {
		switch _, _, err := net.SplitHostPort(s); {
		case s == "*":
			p.all = true
		case strings.Contains(s, "/"):
			n, err := netip.ParsePrefix(s)
			if err != nil {
				return nil, fmt.Errorf("peer %q is no network: %w", s, err)
			}
			p.networks = append(p.networks, n.Masked())
		case err == nil:
			p.ports[s] = true
		case s == "" || strings.ContainsAny(s, " \t"):
			return nil, fmt.Errorf("peer %q is no host, host:port or network", s)
		default:
			p.hosts[strings.Trim(s, "[]")] = true
		}
	}
	return p, nil
}

// Allow gives a *PeerError for a peer that is not in the list.
func (p *Peers) Allow(ep Endpoint) error {
	if p.all || p.hosts[ep.Host] || p.ports[net.JoinHostPort(ep.Host, strconv.Itoa(ep.Port))] {
		return nil
	}
	if a, err := netip.ParseAddr(ep.Host); err == nil {
		for _, n := range p.networks {
			if n.Contains(a.Unmap()) {
				return nil
			}
		}
	}
	return &PeerError{ep, "it is not among the peers that this engine was given (kv_peers)"}
}

// ownHost allows peers at this engine's own address: the default without TLS.
func ownHost(host string) func(Endpoint) error {
	return func(ep Endpoint) error {
		if ep.Host == host {
			return nil
		}
		return &PeerError{ep, fmt.Sprintf("without TLS and without a list of peers (kv_peers) only those at %s are", host)}
	}
}

// Allowed gives a *PeerError if the parameters name a peer that this engine
// does not deal with. Any goroutine.
func (w *Worker) Allowed(p *Params) error {
	if p == nil {
		return nil
	}
	if p.Metaserver != "" {
		at, err := metaserver(p.Metaserver)
		if err != nil {
			return err
		}
		return w.allow(at)
	}
	if p.EngineID == "" && p.Host == "" {
		return nil
	}
	return w.allow(refOf(p).peer)
}

// allow gives a *PeerError, whatever Config.Allow answers with.
func (w *Worker) allow(ep Endpoint) error {
	err := w.cfg.Allow(ep)
	if e := (*PeerError)(nil); err != nil && !errors.As(err, &e) {
		return &PeerError{ep, err.Error()}
	}
	return err
}
