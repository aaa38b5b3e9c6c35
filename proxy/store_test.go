package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
	"github.com/sluice-serving/sluice/proxy/route"
)

// memoryStore is a Store that can be lost and can be slow.
type memoryStore struct {
	mu     sync.Mutex
	values map[string][]byte
	lost   atomic.Bool
	hangs  atomic.Bool
	calls  atomic.Int64
}

var errLost = errors.New("no store")

func (s *memoryStore) enter(ctx context.Context) error {
	s.calls.Add(1)
	if s.hangs.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if s.lost.Load() {
		return errLost
	}
	return nil
}

func (s *memoryStore) Get(ctx context.Context, key string) ([]byte, bool, error) {
	if err := s.enter(ctx); err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.values[key]
	return v, ok, nil
}

func (s *memoryStore) Create(ctx context.Context, key string, value []byte) ([]byte, bool, error) {
	if err := s.enter(ctx); err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.values[key]; ok {
		return v, false, nil
	}
	s.values[key] = value
	return nil, true, nil
}

func (s *memoryStore) Put(ctx context.Context, key string, value []byte) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[key] = value
	return nil
}

func (s *memoryStore) Delete(ctx context.Context, key string) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.values, key)
	return nil
}

func (s *memoryStore) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.values)
}

// replicas starts a second proxy in front of the same instances, with the same store.
func replicas(t *testing.T, s setup) (*cluster, [2]string, *memoryStore) {
	t.Helper()
	store := &memoryStore{values: map[string][]byte{}}
	change := s.change
	s.change = func(cfg *Config) {
		cfg.Store = store
		if change != nil {
			change(cfg)
		}
	}
	c := start(t, s)
	cfg := Config{Append: true, Prefillers: []string{c.p[0].Addr}, Store: store, RetryDelay: time.Millisecond}
	for _, b := range c.d {
		cfg.Decoders = append(cfg.Decoders, Decoder{Addr: b.Addr, Ranks: s.ranks})
	}
	if change != nil {
		change(&cfg)
	}
	p, err := New(cfg)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, l, 5*time.Second) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.Zero(t, p.Snapshot().OpenTurns)
	})
	return c, [2]string{c.url, "http://" + l.Addr().String()}, store
}

// owners lists for each session the decoders and ranks that its requests reached.
func (c *cluster) owners() map[string]map[[2]int]bool {
	out := map[string]map[[2]int]bool{}
	for i, b := range c.d {
		for _, r := range b.Records() {
			s := r.Header.Get("X-Session-Id")
			if out[s] == nil {
				out[s] = map[[2]int]bool{}
			}
			out[s][[2]int{i, r.Rank}] = true
		}
	}
	return out
}

// With a store two replicas send every turn of a session to one owner, whoever
// gets it, also when two of its first turns come at once to both.
func TestReplicasShareAStore(t *testing.T) {
	c, urls, store := replicas(t, setup{decoders: 3, ranks: 2})
	const sessions, turns = 40, 3
	var group sync.WaitGroup
	for i := range sessions {
		group.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			id := fmt.Sprint("s", i)
			both := c.on(urls[0])
			var first sync.WaitGroup
			first.Go(func() { both.post(chatPath, turnBody(1, ""), "X-Session-ID", id) })
			c.on(urls[1]).post(chatPath, turnBody(1, ""), "X-Session-ID", id)
			first.Wait()
			for n := 2; n <= turns; n++ {
				if got := c.on(urls[r.IntN(2)]).post(chatPath, turnBody(n, ""), "X-Session-ID", id); got.status != 200 {
					t.Error(got.status, got.body)
				}
			}
		})
	}
	group.Wait()
	owners := c.owners()
	require.Len(t, owners, sessions)
	used := map[[2]int]int{}
	for s, o := range owners {
		require.Len(t, o, 1, "session %s had several owners: %v", s, o)
		for at := range o {
			used[at]++
		}
	}
	require.Len(t, used, 6, "placement is by load: every rank has sessions")
	_, local, _ := c.legs()
	require.GreaterOrEqual(t, local, sessions*(turns-1), "every later turn was attempted")
	require.Equal(t, sessions, store.size())
	require.Equal(t, 200, c.on(urls[1]).post(chatPath, turnBody(5, ""), "X-Session-ID", "s0", "X-Session-End", "true").status)
	require.Equal(t, sessions-1, store.size(), "an ended session is forgotten by all")
}

// on is the cluster as seen through another proxy.
func (c *cluster) on(url string) *cluster {
	other := *c
	other.url = url
	return &other
}

func (c *cluster) get(path string) reply {
	c.t.Helper()
	resp, err := c.http.Get(c.url + path)
	require.NoError(c.t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(c.t, err)
	return reply{resp.StatusCode, resp.Header, string(raw)}
}

// A store that is lost, or hangs, costs no request its answer: known owners are
// still used, and new sessions are placed by their hash, the same for all.
func TestStoreIsLost(t *testing.T) {
	for _, hang := range []bool{false, true} {
		c, urls, store := replicas(t, setup{decoders: 3, ranks: 2, change: func(cfg *Config) { cfg.StoreTimeout = 20 * time.Millisecond }})
		c.on(urls[0]).post(chatPath, turnBody(1, ""), "X-Session-ID", "before")
		store.lost.Store(!hang)
		store.hangs.Store(hang)
		for i := range 20 {
			id := fmt.Sprint("s", i)
			for n, url := range []string{urls[i%2], urls[1-i%2], urls[i%2]} {
				require.Equal(t, 200, c.on(url).post(chatPath, turnBody(n+1, ""), "X-Session-ID", id).status)
			}
		}
		require.Equal(t, 200, c.on(urls[0]).post(chatPath, turnBody(2, ""), "X-Session-ID", "before").status)
		for s, o := range c.owners() {
			require.Len(t, o, 1, s)
		}
		_, local, _ := c.legs()
		require.Equal(t, 20*2+1, local)
		require.Equal(t, 1, store.size())
		require.Less(t, store.calls.Load(), int64(61), "a lost store is not asked for every request")
		require.Contains(t, c.on(urls[0]).get("/metrics").body, "sluice_proxy_store_failures_total")
		store.lost.Store(false)
		store.hangs.Store(false)
		require.Eventually(t, func() bool {
			c.on(urls[1]).post(chatPath, turnBody(2, ""), "X-Session-ID", "after")
			return store.size() == 2
		}, 10*time.Second, 50*time.Millisecond)
	}
}

// A first turn that fails leaves nothing in the store, and an owner that a
// replica does not know is no owner.
func TestStoreAfterFailure(t *testing.T) {
	c, urls, store := replicas(t, setup{decoders: 1, change: func(cfg *Config) { cfg.MaxRetries = 1 }})
	c.d[0].Set(func(b *backendtest.Backend) { b.Hook = on("d", answering(500, "{}")) })
	require.Equal(t, 502, c.on(urls[0]).post(chatPath, turnBody(1, ""), "X-Session-ID", "s").status)
	require.Zero(t, store.size())
	c.d[0].Set(func(b *backendtest.Backend) { b.Hook = nil })
	for _, value := range []string{`{"Decoder":"gone:1","Bound":true}`, `{"Decoder":"` + c.d[0].Addr + `","Rank":7,"Bound":true}`, `nonsense`, `{"Decoder":"` + c.d[0].Addr + `","Engine":"another life_dp0","Bound":true}`} {
		require.NoError(t, store.Put(t.Context(), storeKey(route.KeyOf("", "s")), []byte(value)))
		c.forget()
		require.Equal(t, 200, c.on(urls[1]).post(chatPath, turnBody(2, ""), "X-Session-ID", "s").status)
		c.wantLegs(1, 0, 1)
		req, err := http.NewRequest(http.MethodDelete, urls[1]+"/v1/sessions/s", nil)
		require.NoError(t, err)
		resp, err := c.http.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusNoContent, resp.StatusCode)
		require.Zero(t, store.size())
	}
}
