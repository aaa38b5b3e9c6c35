package proxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
	"github.com/sluice-serving/sluice/proxy/route"
)

// admin calls the admin surface.
func (c *cluster) admin(method, path, body, token string) reply {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	c.proxy.Admin("secret").ServeHTTP(w, r)
	return reply{w.Code, w.Header(), w.Body.String()}
}

func quickJoin(c *Config) { c.JoinInterval, c.JoinTries = 10*time.Millisecond, 3 }

// R35, X-5: instances join when ready, are drained and removed at run time, and
// a removal ends when that instance's own requests end, whatever else runs.
func TestInstances(t *testing.T) {
	c := start(t, setup{change: quickJoin})
	extra := backendtest.New()
	require.NoError(t, extra.Start(""))
	t.Cleanup(extra.Stop)
	r := c.admin("POST", "/instances/add", fmt.Sprintf(`{"type":"decode","instances":%q,"ranks":2}`, extra.Addr), "secret")
	require.Equal(t, 200, r.status, r.body)
	require.Equal(t, "ok", r.json(t)["message"])
	require.Eventually(t, func() bool { return len(c.proxy.Snapshot().Decoders) == 2 }, 5*time.Second, time.Millisecond)
	require.Len(t, c.proxy.Snapshot().Decoders[1].Ranks, 2)
	c.d = append(c.d, extra)

	// A long answer on each keeps both busy.
	h := newHang()
	for _, b := range c.d {
		b.Set(func(b *backendtest.Backend) { b.Hook = on("d", h.serve(tokenEvent)) })
	}
	stop := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	var all sync.WaitGroup
	for i := range stop {
		all.Go(func() { c.postThen(stop[i], turnBody(1, streamTurn)) })
		wait(t, h.came)
	}
	first := c.d[0].Addr
	require.Equal(t, 200, c.admin("POST", "/instances/remove", fmt.Sprintf(`{"type":"decode","instances":[%q]}`, first), "secret").status)
	require.Len(t, c.proxy.Snapshot().Decoders, 2, "its request is still under way")
	require.True(t, c.proxy.Snapshot().Decoders[0].Draining)
	stop[0] <- struct{}{}
	require.Eventually(t, func() bool { return len(c.proxy.Snapshot().Decoders) == 1 }, 5*time.Second, time.Millisecond)
	require.Equal(t, 1, c.proxy.Snapshot().OpenTurns, "the other one goes on")
	stop[1] <- struct{}{}
	all.Wait()

	r = c.admin("POST", "/instances/drain", fmt.Sprintf(`{"type":"prefill","instances":%q}`, c.p[0].Addr), "secret")
	require.Equal(t, 200, r.status)
	answer := c.post(chatPath, turnBody(1, ""))
	require.Equal(t, 503, answer.status)
	answer.errorOf(t)
	require.Equal(t, 200, c.admin("POST", "/instances/add", fmt.Sprintf(`{"type":"prefill","instances":%q}`, c.p[0].Addr), "secret").status)
	require.Eventually(t, func() bool { return !c.proxy.Snapshot().Prefillers[0].Draining }, 5*time.Second, time.Millisecond)
}

func TestInstanceThatIsNeverReady(t *testing.T) {
	c := start(t, setup{change: quickJoin})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	l.Close()
	require.Equal(t, 200, c.admin("POST", "/instances/add", fmt.Sprintf(`{"type":"prefill","instances":[%q]}`, addr), "secret").status)
	time.Sleep(100 * time.Millisecond)
	require.Len(t, c.proxy.Snapshot().Prefillers, 1)
}

func TestAdminErrors(t *testing.T) {
	c := start(t, setup{})
	for _, token := range []string{"", "wrong"} {
		for _, path := range []string{"/status", "/metrics", "/nothing"} {
			r := c.admin("GET", path, "", token)
			require.Equal(t, 401, r.status)
			r.errorOf(t)
		}
	}
	for body, status := range map[string]int{
		`{`: 400, `{"type":"x","instances":"a:1"}`: 400, `{"type":"decode"}`: 400, `{"type":"decode","instances":"http://a:1"}`: 400,
		`{"type":"decode","instances":"a:1","zzz":1}`: 400, `{"type":"decode","instances":7}`: 400, `{"type":"decode","instances":"a:1"}`: 404,
	} {
		r := c.admin("POST", "/instances/remove", body, "secret")
		require.Equal(t, status, r.status, body)
		r.errorOf(t)
	}
	require.Equal(t, 400, c.admin("POST", "/instances/add", `{"type":"decode","instances":"a:1","pool":"none"}`, "secret").status)
	require.Equal(t, 400, c.admin("POST", "/instances/add", `{"type":"decode","instances":"a:1","ranks":-4}`, "secret").status)
	require.Equal(t, 404, c.admin("GET", "/x", "", "secret").status)
	r := c.admin("GET", "/ui", "", "")
	require.Equal(t, 200, r.status)
	require.Contains(t, r.header.Get("Content-Security-Policy"), "default-src 'none'")
	require.Equal(t, 401, httpStatus(c.proxy.Admin(""), "GET", "/status", ""), "an empty token opens nothing")
}

func httpStatus(h http.Handler, method, path, token string) int {
	r := httptest.NewRequest(method, path, nil)
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

func TestStatus(t *testing.T) {
	c := start(t, setup{ranks: 2})
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "private-session")
	c.post(chatPath, turnBody(2, ""), "X-Session-ID", "private-session")
	c.d[0].Evict("private-session")
	c.post(chatPath, turnBody(2, ""), "X-Session-ID", "private-session")
	r := c.admin("GET", "/status", "", "secret")
	require.NotContains(t, r.body, "private-session")
	var s Status
	require.NoError(t, json.Unmarshal([]byte(r.body), &s))
	require.Equal(t, map[string]uint64{"pd": 1, "local": 1, "fallback": 1}, s.Routes)
	require.Equal(t, map[string]uint64{"refused:no_prefix": 1}, s.Fallbacks)
	require.Equal(t, 1, s.Sessions)
	require.Len(t, s.Last, 3)
	require.Equal(t, "fallback", s.Last[0].Route)
	require.Len(t, s.Decoders[0].Ranks, 2)
	require.Contains(t, c.admin("GET", "/metrics", "", "secret").body, `sluice_proxy_local_attempts_total{result="hit"} 1`)
}

func TestInstancesFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "instances.yaml")
	var c *cluster
	write := func(text string) {
		require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	c = start(t, setup{change: func(cfg *Config) {
		write(fmt.Sprintf("prefillers: [%s]\ndecoders: [{addr: %q, ranks: 3}]\n", cfg.Prefillers[0], cfg.Decoders[0].Addr))
		cfg.Prefillers, cfg.Decoders = nil, nil
		cfg.InstancesFile, cfg.WatchEvery = path, 5*time.Millisecond
		quickJoin(cfg)
	}})
	require.Eventually(t, func() bool {
		s := c.proxy.Snapshot()
		return len(s.Decoders) == 1 && len(s.Prefillers) == 1 && len(s.Decoders[0].Ranks) == 3
	}, 5*time.Second, time.Millisecond)
	require.Equal(t, 200, c.post(chatPath, turnBody(1, "")).status)
	write("decoders: [{addr: nonsense}]")
	time.Sleep(30 * time.Millisecond)
	require.Len(t, c.proxy.Snapshot().Prefillers, 1, "a bad file changes nothing")
	write(fmt.Sprintf("prefillers: [%s]\n", c.p[0].Addr))
	require.Eventually(t, func() bool { return len(c.proxy.Snapshot().Decoders) == 0 }, 5*time.Second, time.Millisecond)
	require.Equal(t, 503, c.post(chatPath, turnBody(1, "")).status)
}

// An instance of the set that is not ready is asked for as long as the set has
// it, and no longer; one that is listed with other ranks joins again when its
// requests have ended.
func TestInstancesThatBecomeReadyLate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "instances.yaml")
	write := func(format string, args ...any) {
		require.NoError(t, os.WriteFile(path+".new", fmt.Appendf(nil, format, args...), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	late, never := backendtest.New(), backendtest.New()
	for _, b := range []*backendtest.Backend{late, never} { // addresses that are free again
		require.NoError(t, b.Start(""))
		b.Stop()
	}
	write("{}")
	c := start(t, setup{change: func(cfg *Config) {
		write("prefillers: [%s]\ndecoders: [{addr: %q}, {addr: %q, ranks: 2}, {addr: %q}]\n", cfg.Prefillers[0], cfg.Decoders[0].Addr, late.Addr, never.Addr)
		cfg.InstancesFile, cfg.WatchEvery, cfg.JoinInterval, cfg.JoinTries = path, time.Millisecond, time.Millisecond, 2
	}})
	joins := func() int {
		c.proxy.mu.Lock()
		defer c.proxy.mu.Unlock()
		return len(c.proxy.joins)
	}
	decoders := func() map[string]int {
		out := map[string]int{}
		for _, d := range c.proxy.Snapshot().Decoders {
			if !d.Draining {
				out[d.Name] = len(d.Ranks)
			}
		}
		return out
	}
	require.Eventually(t, func() bool { return joins() == 2 }, 10*time.Second, time.Millisecond)
	time.Sleep(50 * time.Millisecond) // many more tries than two
	require.Equal(t, 2, joins())
	require.NoError(t, late.Start(late.Addr))
	t.Cleanup(late.Stop)
	require.Eventually(t, func() bool { return decoders()[late.Addr] == 2 && joins() == 1 }, 10*time.Second, time.Millisecond)
	write("prefillers: [%s]\ndecoders: [{addr: %q}, {addr: %q, ranks: 2}]\n", c.p[0].Addr, c.d[0].Addr, late.Addr)
	require.Eventually(t, func() bool { return joins() == 0 }, 10*time.Second, time.Millisecond, "the one that is never ready is no longer asked")

	h := newHang()
	late.Set(func(b *backendtest.Backend) { b.Hook = on("d", h.serve(tokenEvent)) })
	require.Equal(t, 200, c.admin("POST", "/instances/drain", fmt.Sprintf(`{"type":"decode","instances":%q}`, c.d[0].Addr), "secret").status)
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() { c.postThen(stop, turnBody(1, streamTurn)) })
	wait(t, h.came)
	write("prefillers: [%s]\ndecoders: [{addr: %q, ranks: 3}]\n", c.p[0].Addr, late.Addr)
	require.Eventually(t, func() bool { return joins() == 1 && len(decoders()) == 0 }, 10*time.Second, time.Millisecond)
	stop <- struct{}{}
	all.Wait()
	require.Eventually(t, func() bool { return decoders()[late.Addr] == 3 && joins() == 0 }, 10*time.Second, time.Millisecond)

	// A removal ends the wait for one that was added by hand.
	require.Equal(t, 404, c.admin("POST", "/instances/remove", fmt.Sprintf(`{"type":"decode","instances":%q}`, never.Addr), "secret").status)
	mute, err := net.Listen("tcp", never.Addr) // connects, and says nothing
	require.NoError(t, err)
	defer mute.Close()
	require.Equal(t, 200, c.admin("POST", "/instances/add", fmt.Sprintf(`{"type":"decode","instances":%q}`, never.Addr), "secret").status)
	require.Equal(t, 1, joins())
	require.Equal(t, 200, c.admin("POST", "/instances/remove", fmt.Sprintf(`{"type":"decode","instances":%q}`, never.Addr), "secret").status)
	require.Zero(t, joins())
}

// A tenant has so many requests at a time, some that wait, and 429 beyond.
func TestTenantLimits(t *testing.T) {
	c := start(t, setup{change: func(c *Config) { c.TenantConcurrency, c.TenantQueue, c.QueueTimeout = 1, 1, 10*time.Second }})
	h := newHang()
	c.d[0].Hook = on("d", h.serve(tokenEvent))
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() { c.postThen(stop, turnBody(1, streamTurn), "Authorization", "Bearer a") })
	wait(t, h.came)
	all.Go(func() { c.postThen(h.came, turnBody(1, streamTurn), "Authorization", "Bearer a") }) // waits, then comes
	require.Eventually(t, func() bool {
		c.proxy.gate.mu.Lock()
		defer c.proxy.gate.mu.Unlock()
		l := c.proxy.gate.tenants["Bearer a"]
		return l != nil && len(l.waiting) == 1
	}, 5*time.Second, time.Millisecond)
	r := c.post(chatPath, turnBody(1, ""), "Authorization", "Bearer a")
	require.Equal(t, 429, r.status)
	require.NotEmpty(t, r.header.Get("Retry-After"))
	r.errorOf(t)
	c.d[0].Set(func(b *backendtest.Backend) {
		old := b.Hook
		b.Hook = func(w http.ResponseWriter, r *http.Request, rec backendtest.Record) bool {
			return !strings.Contains(string(rec.Body), "other tenant") && old(w, r, rec)
		}
	})
	require.Equal(t, 200, c.post(chatPath, turnBody(1, `,"x":"other tenant"`), "Authorization", "Bearer b").status)
	stop <- struct{}{}
	all.Wait()
	require.Eventually(t, func() bool {
		c.proxy.gate.mu.Lock()
		defer c.proxy.gate.mu.Unlock()
		return len(c.proxy.gate.tenants) == 0
	}, 5*time.Second, time.Millisecond)
}

func TestGate(t *testing.T) {
	g := newGate(2, 2, 20*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, g.enter(ctx, "a"))
	require.NoError(t, g.enter(ctx, "a"))
	require.ErrorIs(t, g.enter(ctx, "a"), errPatience)
	done := make(chan error, 3)
	g.patience = time.Minute
	for range 2 {
		go func() { done <- g.enter(ctx, "a") }()
	}
	require.Eventually(t, func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.tenants["a"].waiting) == 2 }, time.Second, time.Millisecond)
	require.ErrorIs(t, g.enter(ctx, "a"), errFull)
	g.leave("a")
	require.NoError(t, <-done)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	g.leave("a")
	g.leave("a")
	require.Empty(t, g.tenants)
}

// API keys are checked where keys are given, never passed on and never logged.
func TestKeys(t *testing.T) {
	clients, err := ReadClients(strings.NewReader("# keys\nteam=sk-one\n\nsk-two\n"))
	require.NoError(t, err)
	require.Len(t, clients, 2)
	for _, bad := range []string{"a=", "=b", "x\nx"} {
		_, err := ReadClients(strings.NewReader(bad))
		require.Error(t, err)
	}
	var log strings.Builder
	var mu sync.Mutex
	c := start(t, setup{change: func(c *Config) {
		c.Clients, c.AccessLog = clients, true
		c.Logger = slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}})
	for auth, status := range map[string]int{"": 401, "Bearer nope": 401, "sk-one": 401, "Basic sk-one": 401, "Bearer sk-one": 200, "bearer sk-two": 200} {
		r := c.post(chatPath, turnBody(1, ""), "Authorization", auth, "X-Session-ID", "s")
		require.Equal(t, status, r.status, auth)
		if status == 401 {
			r.errorOf(t)
		}
	}
	c.wantLegs(2, 0, 2) // two tenants, two sessions
	// What names instances or models asks for a key too.
	for _, path := range []string{"/v1/models", "/metrics"} {
		r := c.get(path)
		require.Equal(t, 401, r.status, path)
		r.errorOf(t)
	}
	require.Equal(t, 200, c.get("/health").status)
	req, err := http.NewRequest(http.MethodGet, c.url+"/metrics", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer sk-one")
	resp, err := c.http.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 200, resp.StatusCode)
	for _, r := range append(c.p[0].Records(), c.d[0].Records()...) {
		require.Empty(t, r.Header.Get("Authorization"))
	}
	mu.Lock()
	defer mu.Unlock()
	require.Contains(t, log.String(), "msg=request")
	require.Contains(t, log.String(), "msg=decision")
	require.NotContains(t, log.String(), "sk-")
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func TestPassAuthorization(t *testing.T) {
	c := start(t, setup{change: func(c *Config) { c.PassAuthorization = true }})
	c.post(chatPath, turnBody(1, ""), "Authorization", "Bearer mine")
	require.Equal(t, "Bearer mine", c.p[0].Records()[0].Header.Get("Authorization"))
	c.d[0].Hook = on("d", answering(401, `{"error":{"message":"no","type":"t","param":null,"code":null}}`))
	require.Equal(t, 401, c.post(chatPath, turnBody(1, "")).status)

	// The list of models needs the client's key, and an instance that wants one is ready.
	locked := func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") != "Bearer mine" {
			answering(401, `{}`)(w, r)
			return true
		}
		return false
	}
	closed := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !locked(w, r) {
			_, _ = io.WriteString(w, `{"data":[]}`)
		}
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- closed.Serve(l) }()
	t.Cleanup(func() { closed.Close(); <-done })
	addr := l.Addr().String()
	c = start(t, setup{change: func(c *Config) {
		c.PassAuthorization, c.Prefillers = true, []string{addr}
		c.Decoders = nil
		c.InstancesFile = filepath.Join(t.TempDir(), "none.yaml")
		quickJoin(c)
	}})
	require.Equal(t, 503, c.get("/v1/models").status)
	req, err := http.NewRequest(http.MethodGet, c.url+"/v1/models", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer mine")
	resp, err := c.http.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, 200, c.admin("POST", "/instances/add", fmt.Sprintf(`{"type":"decode","instances":%q}`, addr), "secret").status)
	require.Eventually(t, func() bool { return len(c.proxy.Snapshot().Decoders) == 1 }, 10*time.Second, time.Millisecond)
}

func TestRouteHeader(t *testing.T) {
	c := start(t, setup{change: func(c *Config) { c.RouteHeader = true }})
	require.Equal(t, "pd; reason=no_owner", c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s").header.Get("X-Sluice-Route"))
	require.Equal(t, "local; reason=owner", c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s").header.Get("X-Sluice-Route"))
	c.d[0].Evict("s")
	require.Equal(t, "fallback; reason=refused:no_prefix", c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s").header.Get("X-Sluice-Route"))
}

// selfSigned makes a certificate for 127.0.0.1 and writes it with its key.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	require.NoError(t, err)
	raw, err := x509.MarshalECPrivateKey(k)
	require.NoError(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}), 0o600))
	return cert, key
}

// TLS to clients, over HTTP/1.1 and HTTP/2, streams included.
func TestTLS(t *testing.T) {
	cert, key := selfSigned(t)
	f := File{TLS: FileTLS{Cert: cert, Key: key, BackendCA: cert}, Prefillers: []string{"a:1"}, Decoders: []FilePool{{Instances: []FileNode{{Addr: "b:1"}}}}}
	loaded, _, err := f.Load()
	require.NoError(t, err)
	require.NotNil(t, loaded.BackendTLS)
	c := start(t, setup{change: func(c *Config) { c.TLS = loaded.TLS }})
	c.url = strings.Replace(c.url, "http:", "https:", 1)
	for _, h2 := range []bool{false, true} {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: loaded.BackendTLS.RootCAs}, ForceAttemptHTTP2: h2}
		c.http = &http.Client{Transport: tr}
		r := c.post(chatPath, turnBody(1, streamTurn), "X-Session-ID", fmt.Sprint(h2))
		require.Equal(t, 200, r.status)
		require.Equal(t, backendtest.Text(4), textOf(t, r.body))
		tr.CloseIdleConnections()
	}
	for name, bad := range map[string]File{
		"its key": {TLS: FileTLS{Cert: cert}}, "no such file": {TLS: FileTLS{BackendCA: "/nonexistent"}}, "holds no certificate": {TLS: FileTLS{BackendCA: key}},
		"client keys": {Keys: FileKeys{ClientsFile: "/nonexistent"}}, "needs a token": {Admin: FileAdmin{Listen: "127.0.0.1:0"}}, "admin": {Admin: FileAdmin{Listen: "x"}},
	} {
		_, _, err := bad.Load()
		require.ErrorContains(t, err, name)
	}
}

// Plain HTTP/2 works too.
func TestPlainHTTP2(t *testing.T) {
	c := start(t, setup{})
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: protocols}
	c.http = &http.Client{Transport: tr}
	defer tr.CloseIdleConnections()
	r := c.post(chatPath, turnBody(1, streamTurn))
	require.Equal(t, backendtest.Text(4), textOf(t, r.body))
}

const metricsText = `# HELP vllm:num_requests_waiting x
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="1",model_name="m, \"odd\"} 4"} 4.0
vllm:num_requests_running{engine="1",model_name="m"} 2 1700000000
vllm:kv_cache_usage_perc{engine="1"} 0.5
vllm:other{engine="0"} NaN
process_start_time_seconds 1.7e+09
sluice_graph_steps_total{mode="FULL",reason=""} 30
sluice_graph_steps_total{mode="NONE",reason="prefill"} 10
broken{ 1
x
`

func TestScrape(t *testing.T) {
	now := time.Now()
	s := parseMetrics(metricsText, now)
	require.InDelta(t, 1.7e9, s.start, 0)
	require.Equal(t, route.Load{Waiting: 3, At: now}, *s.ranks[0])
	require.Equal(t, route.Load{Waiting: 4, Running: 2, KVUsage: 0.5, At: now}, *s.ranks[1])
	require.InDelta(t, 30, s.full, 0)
	require.InDelta(t, 40, s.steps, 0)

	c := start(t, setup{ranks: 2, change: func(c *Config) { c.ScrapeEvery = 5 * time.Millisecond }, backend: func(b *backendtest.Backend) { b.Metrics, b.Engine = metricsText, "" }})
	require.Eventually(t, func() bool {
		s := c.proxy.Snapshot()
		return s.Decoders[0].Ranks[1].Reported.Waiting == 4 && s.Prefillers[0].Reported.Waiting == 7
	}, 5*time.Second, time.Millisecond)
	require.InDelta(t, 0.75, c.proxy.Status().Decoders[0].FULL, 1e-9)
	// A changed start time is a new life, for engines that do not name theirs.
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s")
	generation := c.proxy.Snapshot().Decoders[0].Ranks[0].Generation
	c.d[0].Set(func(b *backendtest.Backend) { b.Metrics = "process_start_time_seconds 1.8e+09\n" })
	require.Eventually(t, func() bool { return c.proxy.Snapshot().Decoders[0].Ranks[0].Generation == generation+1 }, 5*time.Second, time.Millisecond)
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s")
	require.Equal(t, "owner_restarted", c.traces(2)[1].Reason)
}

func FuzzScrape(f *testing.F) {
	f.Add(metricsText)
	f.Fuzz(func(_ *testing.T, text string) { parseMetrics(text, time.Time{}) })
}

// O-16: a proxy that restarts in traffic finds the owners again by the hash.
func TestProxyRestart(t *testing.T) {
	c := start(t, setup{decoders: 3, ranks: 2, change: hashPlacement})
	owner := map[int][2]int{}
	for i := range 20 {
		c.forget()
		c.post(chatPath, turnBody(1, ""), "X-Session-ID", fmt.Sprint(i))
		at, rank := c.serving()
		owner[i] = [2]int{at, rank}
	}
	cfg := c.proxy.cfg
	cfg.TraceFile = ""
	c.serve(cfg) // another replica, or the same after a restart
	for i := range 20 {
		c.forget()
		c.post(chatPath, turnBody(2, ""), "X-Session-ID", fmt.Sprint(i))
		c.wantLegs(0, 1, 0)
		at, rank := c.serving()
		require.Equal(t, owner[i], [2]int{at, rank})
	}
	// A first turn is no follow-up, whoever sees it.
	c.forget()
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "fresh")
	c.wantLegs(1, 0, 1)
}
