// Package etcd keeps what the replicas of a proxy share in etcd: the owners of
// sessions, and the set of instances as leases that the instances hold.
//
// A Store and a Membership may be used from many goroutines. They do not close
// the client that they are given.
package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sluice-serving/sluice/proxy"
)

// Store keeps the owners of sessions under a prefix. Keys live on leases that
// many of them share: all keys written within an eighth of the time to live end
// together, so that a million sessions take few leases.
type Store struct {
	client *clientv3.Client
	prefix string
	ttl    time.Duration

	mu    sync.Mutex
	lease clientv3.LeaseID
	until time.Time // the lease takes new keys until then
}

var _ proxy.Store = (*Store)(nil)

// NewStore makes a Store. Keys are forgotten after ttl, or up to a quarter
// later; etcd counts whole seconds.
func NewStore(client *clientv3.Client, prefix string, ttl time.Duration) (*Store, error) {
	if ttl < time.Second {
		return nil, fmt.Errorf("a time to live of %v: give at least a second", ttl)
	}
	return &Store{client: client, prefix: strings.TrimSuffix(prefix, "/") + "/", ttl: ttl}, nil
}

// current gives a lease that lives for at least the time to live.
func (s *Store) current(ctx context.Context) (clientv3.LeaseID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Before(s.until) {
		return s.lease, nil
	}
	share := max(s.ttl/8, time.Second)
	granted, err := s.client.Grant(ctx, int64((s.ttl+share+time.Second-1)/time.Second))
	if err != nil {
		return 0, err
	}
	s.lease, s.until = granted.ID, now.Add(share)
	return s.lease, nil
}

// Get implements proxy.Store.
func (s *Store) Get(ctx context.Context, key string) ([]byte, bool, error) {
	resp, err := s.client.Get(ctx, s.prefix+key)
	if err != nil || len(resp.Kvs) == 0 {
		return nil, false, err
	}
	return resp.Kvs[0].Value, true, nil
}

// Create implements proxy.Store.
func (s *Store) Create(ctx context.Context, key string, value []byte) ([]byte, bool, error) {
	lease, err := s.current(ctx)
	if err != nil {
		return nil, false, err
	}
	key = s.prefix + key
	resp, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, string(value), clientv3.WithLease(lease))).
		Else(clientv3.OpGet(key)).
		Commit()
	switch {
	case err != nil:
		return nil, false, s.forget(err)
	case resp.Succeeded:
		return nil, true, nil
	}
	return resp.Responses[0].GetResponseRange().Kvs[0].Value, false, nil // the key exists, or the condition held
}

// Put implements proxy.Store.
func (s *Store) Put(ctx context.Context, key string, value []byte) error {
	lease, err := s.current(ctx)
	if err != nil {
		return err
	}
	_, err = s.client.Put(ctx, s.prefix+key, string(value), clientv3.WithLease(lease))
	return s.forget(err)
}

// forget drops the shared lease after a failure: a server that lost its data
// does not know it any more.
func (s *Store) forget(err error) error {
	if err != nil {
		s.mu.Lock()
		s.until = time.Time{}
		s.mu.Unlock()
	}
	return err
}

// Delete implements proxy.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	_, err := s.client.Delete(ctx, s.prefix+key)
	return err
}

// Membership follows the instances that are registered under a prefix.
type Membership struct {
	client *clientv3.Client
	prefix string
}

var _ proxy.Membership = (*Membership)(nil)

// NewMembership makes a Membership. An instance is a key
// PREFIX/prefill/HOST:PORT or PREFIX/decode/HOST:PORT, on a lease that it keeps
// alive; the value is empty, or a JSON object with the members ranks and pool.
func NewMembership(client *clientv3.Client, prefix string) *Membership {
	return &Membership{client: client, prefix: strings.TrimSuffix(prefix, "/") + "/"}
}

// Instance is one registered instance.
type Instance struct {
	Decoder bool
	Addr    string // host:port
	Ranks   int    // of a Decoder; 0 means 1
	Pool    string // of a Decoder; empty means the default one
}

// value is what a key says beside its name.
type value struct {
	Ranks int    `json:"ranks,omitempty"`
	Pool  string `json:"pool,omitempty"`
}

// Register registers an instance and keeps it registered until the context
// ends, when it is taken out at once. If the process dies, it is gone after ttl.
// The error is that of the registration being lost.
func (m *Membership) Register(ctx context.Context, in Instance, ttl time.Duration) error {
	lease, err := m.client.Grant(ctx, int64(max(ttl, time.Second)/time.Second))
	if err != nil {
		return err
	}
	role := "prefill/"
	if in.Decoder {
		role = "decode/"
	}
	raw, err := json.Marshal(value{Ranks: in.Ranks, Pool: in.Pool})
	if err != nil { // a number and a text always encode
		return err
	}
	if _, err := m.client.Put(ctx, m.prefix+role+in.Addr, string(raw), clientv3.WithLease(lease.ID)); err != nil {
		return err
	}
	alive, err := m.client.KeepAlive(ctx, lease.ID)
	if err != nil {
		return err
	}
	for range alive { // ends with the context, or with the lease
	}
	if ctx.Err() == nil {
		return fmt.Errorf("the lease of %s was lost", in.Addr)
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, err = m.client.Revoke(limit, lease.ID)
	return err
}

// errCompacted reports that changes were missed.
var errCompacted = errors.New("changes were missed")

// Watch implements proxy.Membership.
func (m *Membership) Watch(ctx context.Context, changed func(proxy.Members)) error {
	resp, err := m.client.Get(ctx, m.prefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	set := map[string][]byte{}
	for _, kv := range resp.Kvs {
		set[string(kv.Key)] = kv.Value
	}
	changed(m.members(set))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for resp := range m.client.Watch(clientv3.WithRequireLeader(ctx), m.prefix, clientv3.WithPrefix(), clientv3.WithRev(resp.Header.Revision+1)) {
		if err := resp.Err(); err != nil {
			return err
		}
		for _, ev := range resp.Events {
			if ev.Type == clientv3.EventTypeDelete {
				delete(set, string(ev.Kv.Key))
			} else {
				set[string(ev.Kv.Key)] = ev.Kv.Value
			}
		}
		if len(resp.Events) > 0 {
			changed(m.members(set))
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errCompacted
}

// members reads the set; a key or value that cannot be read is left out.
func (m *Membership) members(set map[string][]byte) proxy.Members {
	var out proxy.Members
	for key, raw := range set {
		role, addr, _ := strings.Cut(strings.TrimPrefix(key, m.prefix), "/")
		if proxy.CheckAddress(addr) != nil {
			continue
		}
		var v value
		if len(raw) > 0 && json.Unmarshal(raw, &v) != nil {
			continue
		}
		switch role {
		case "prefill":
			out.Prefillers = append(out.Prefillers, addr)
		case "decode":
			out.Decoders = append(out.Decoders, proxy.MemberNumber{Addr: addr, Ranks: v.Ranks, Pool: v.Pool})
		}
	}
	slices.Sort(out.Prefillers)
	slices.SortFunc(out.Decoders, func(a, b proxy.MemberNumber) int { return strings.Compare(a.Addr, b.Addr) })
	return out
}
