package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
	"github.com/sluice-serving/sluice/proxy/shared/etcd"
)

func build(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "sluice-proxy")
	out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	return bin
}

// run starts a replica and gives its address.
func run(t *testing.T, bin string, args ...string) string {
	t.Helper()
	cmd := exec.Command(bin, append([]string{"--port", "0", "--enable-decoder-append-prefill", "--log-level", "error"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, stderr.String())
	_, addr, ok := strings.Cut(strings.TrimSpace(line), "listening on ")
	require.True(t, ok, line)
	return addr
}

func post(proxy, session string, turn int) (int, error) {
	var b strings.Builder
	b.WriteString(`{"model":"fake","messages":[{"role":"user","content":"q"}`)
	for range turn - 1 {
		b.WriteString(`,{"role":"assistant","content":"a"},{"role":"user","content":"q"}`)
	}
	req, err := http.NewRequest(http.MethodPost, proxy+"/v1/chat/completions", strings.NewReader(b.String()+"]}"))
	if err != nil {
		return 0, err
	}
	req.Header.Set("X-Session-ID", session)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, errors.Join(err, resp.Body.Close())
}

func fakes(t *testing.T, n int) (list []*backendtest.Backend) {
	t.Helper()
	for range n {
		b := backendtest.New()
		b.Engine = "e"
		require.NoError(t, b.Start(""))
		t.Cleanup(b.Stop)
		list = append(list, b)
	}
	return list
}

// pair is two replicas, as processes, before a Prefiller and three Decoders of two ranks.
type pair struct {
	t    *testing.T
	urls []string
	d    []*backendtest.Backend
}

func replicas(t *testing.T, bin string, args ...string) *pair {
	t.Helper()
	f := fakes(t, 4)
	hp, pp, err := net.SplitHostPort(f[0].Addr)
	require.NoError(t, err)
	var hosts, ports []string
	for _, d := range f[1:] {
		h, p, err := net.SplitHostPort(d.Addr)
		require.NoError(t, err)
		hosts, ports = append(hosts, h), append(ports, p)
	}
	args = append(args, "--decoder-dp-size", "2", "--prefiller-hosts", hp, "--prefiller-ports", pp,
		"--decoder-hosts", strings.Join(hosts, ","), "--decoder-ports", strings.Join(ports, ","))
	return &pair{t: t, urls: []string{run(t, bin, args...), run(t, bin, args...)}, d: f[1:]}
}

// drive runs three turns of each session, each on a replica by chance, and
// counts the later turns that were attempted on the rank of the first.
func (p *pair) drive(prefix string, sessions int) (agreed, later int) {
	p.t.Helper()
	for _, d := range p.d {
		d.Forget()
	}
	var group sync.WaitGroup
	limit := make(chan struct{}, 8)
	for i := range sessions {
		limit <- struct{}{}
		group.Go(func() {
			defer func() { <-limit }()
			r := rand.New(rand.NewPCG(7, uint64(i)))
			for turn := 1; turn <= 3; turn++ {
				if status, err := post(p.urls[r.IntN(2)], fmt.Sprint(prefix, i), turn); err != nil || status != 200 {
					p.t.Error(status, err)
				}
			}
		})
	}
	group.Wait()
	type seen struct{ first, local map[string]int }
	of := map[string]seen{}
	for _, d := range p.d {
		for _, rec := range d.Records() {
			id := rec.Header.Get("X-Session-Id")
			if of[id].first == nil {
				of[id] = seen{map[string]int{}, map[string]int{}}
			}
			at := of[id].first
			if rec.Leg == "local" {
				at = of[id].local
			}
			at[fmt.Sprint(d.Addr, " ", rec.Rank)]++
		}
	}
	require.Len(p.t, of, sessions)
	for _, s := range of {
		later += 2
		for at := range s.first {
			if len(s.first) == 1 { // and no fallback anywhere else
				agreed += s.local[at]
			}
		}
	}
	p.t.Logf("%s: %d of %d later turns of %d sessions went to the owner", prefix, agreed, later, sessions)
	return agreed, later
}

// Two replicas and clients that take one of them by chance: with a store in a
// real NATS server every later turn finds the session's owner, by the hash alone
// 99.9 % do. Then the server is stopped, and nobody notices. SLUICE_LONG makes
// it 10,000 sessions.
func TestReplicas(t *testing.T) {
	sessions := 300
	if os.Getenv("SLUICE_LONG") != "" {
		sessions = 10_000
	}
	bin := build(t)
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true})
	require.NoError(t, err)
	s.Start()
	stop := sync.OnceFunc(func() { s.Shutdown(); s.WaitForShutdown() })
	t.Cleanup(stop)
	require.True(t, s.ReadyForConnections(time.Minute))

	p := replicas(t, bin, "--session-store", s.ClientURL()+"/sessions")
	agreed, later := p.drive("with-", sessions)
	require.Equal(t, later, agreed)
	stop()
	agreed, later = p.drive("lost-", 30)
	require.Equal(t, later, agreed)

	p = replicas(t, bin, "--placement", "hash")
	agreed, later = p.drive("without-", sessions)
	require.GreaterOrEqual(t, float64(agreed), 0.999*float64(later))
}

// Instances come from leases in a real etcd.
func TestMembership(t *testing.T) {
	path, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("there is no etcd here: install the Debian package etcd-server")
	}
	free := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		return l.Addr().String()
	}
	client, peer := free(), "http://"+free()
	cmd := exec.Command(path, "--data-dir", filepath.Join(t.TempDir(), "etcd"), "--listen-client-urls", "http://"+client, "--advertise-client-urls", "http://"+client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--log-level", "error")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	u, err := url.Parse("etcd://" + client + "/sluice/instances")
	require.NoError(t, err)
	members, closer, err := etcd.OpenMembership(t.Context(), u)
	require.NoError(t, err)
	t.Cleanup(func() { _ = closer.Close() })
	f := fakes(t, 2)
	bin := build(t)
	proxy := run(t, bin, "--membership", u.String(), "--session-store", "etcd://"+client+"/sluice/sessions")
	status, err := post(proxy, "s", 1)
	require.NoError(t, err)
	require.Equal(t, 503, status, "there is nobody yet")
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for i, b := range f {
		group.Go(func() {
			for ctx.Err() == nil { // the server may still be starting
				err := members.(*etcd.Membership).Register(ctx, etcd.Instance{Addr: b.Addr, Decoder: i == 1, Ranks: i}, 5*time.Second)
				if err == nil {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	require.Eventually(t, func() bool {
		status, err := post(proxy, "s", 1)
		return err == nil && status == 200
	}, time.Minute, 100*time.Millisecond)
	require.Eventually(t, func() bool {
		f[1].Forget()
		status, err := post(proxy, "s", 2)
		records := f[1].Records()
		return err == nil && status == 200 && len(records) == 1 && records[0].Leg == "local"
	}, time.Minute, 100*time.Millisecond)
	cancel()
	group.Wait()
	require.Eventually(t, func() bool {
		status, err := post(proxy, "t", 1)
		return err == nil && status == 503
	}, time.Minute, 100*time.Millisecond)
}
