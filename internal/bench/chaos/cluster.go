package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/internal/up"
)

// adminToken opens the proxy's status to this run.
const adminToken = "chaos"

// leaseSeconds is how long blocks stay that nobody takes.
const leaseSeconds = 3

// cluster is the processes. Engines keep their ports when they are started again.
type cluster struct {
	sup   *up.Supervisor
	dir   string
	ports []int // of the engines' HTTP
	admin string
	proxy *up.Child

	mu      sync.Mutex
	members [engines]*member
}

// member is one engine.
type member struct {
	name   string
	args   []string
	child  *up.Child     // nil while it is down
	back   chan struct{} // closed when it is up
	starts int
	idle   usage // when it was ready
	err    error // of its last start
	dying  sync.Mutex
}

// freePorts finds n ports that nobody listens on now.
func freePorts(n int) ([]int, error) {
	var out []int
	var open []net.Listener
	defer func() {
		for _, l := range open {
			_ = l.Close() // nobody was connected
		}
	}()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		open = append(open, l)
		out = append(out, l.Addr().(*net.TCPAddr).Port)
	}
	return out, nil
}

// engineArgs are the arguments of an engine. Everything is small, so that an
// engine is ready soon and its pool and tiers are short of room.
func (c *cluster) engineArgs(who int, seed uint64) []string {
	args := []string{
		"serve", "--port", strconv.Itoa(c.ports[who]), "--drain-timeout", "5s", "--enforce-eager", "--device-workers", "1",
		"--max-num-seqs", "8", "--max-num-batched-tokens", "128", "--max-model-len", "256", "--block-size", "8",
	}
	faults := fmt.Sprintf(`"kv_lease_duration":%d,"kv_load_timeout":2,"transport_fault_seed":%d,"transport_faults":`+
		`"read?0.04 error; read?0.03 corrupt; read?0.02 drop; read?0.05 delay 40ms; connect?0.03 error; read?0.01 kill"`, leaseSeconds, seed+uint64(10*who))
	if who < prefillers {
		return append(args, "--num-kv-blocks", "96", "--kv-transfer-config", fmt.Sprintf(
			`{"kv_connector":"pd","kv_role":"kv_producer","kv_load_failure_policy":"recompute","kv_connector_extra_config":{%s}}`, faults))
	}
	transfer := fmt.Sprintf(`{"kv_connector":"multi","kv_role":"kv_consumer","kv_load_failure_policy":"recompute","kv_connector_extra_config":{"connectors":[
		{"kv_connector":"offload","kv_connector_extra_config":{"cpu_bytes_to_use":4194304,"enable_offload_prefix_caching":true,"file_path":%q,"file_bytes":4194304,"file_full_every":3}},
		{"kv_connector":"pd","kv_connector_extra_config":{%s}}]}}`, filepath.Join(c.dir, fmt.Sprintf("kv-d%d", who-prefillers)), faults)
	return append(args, "--data-parallel-size", "2", "--num-kv-blocks", "34", "--kv-transfer-config", transfer,
		"--additional-config", `{"scheduler_config":{"decoder_append_prefill_enable":true,"recompute_scheduler_enable":true}}`)
}

// startCluster starts engines and proxy.
func startCluster(ctx context.Context, sup *up.Supervisor, dir string, seed uint64) (*cluster, error) {
	ports, err := freePorts(engines + 1)
	if err != nil {
		return nil, err
	}
	c := &cluster{sup: sup, dir: dir, ports: ports, admin: net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[engines]))}
	for who := range c.members {
		name := fmt.Sprintf("p%d", who)
		if who >= prefillers {
			name = fmt.Sprintf("d%d", who-prefillers)
		}
		c.members[who] = &member{name: name, args: c.engineArgs(who, seed)}
		if err := c.start(ctx, who); err != nil {
			return nil, err
		}
	}
	token := filepath.Join(dir, "admin-token")
	if err := os.WriteFile(token, []byte(adminToken), 0o600); err != nil {
		return nil, err
	}
	hosts := func(n int) string { return strings.TrimSuffix(strings.Repeat("127.0.0.1,", n), ",") }
	join := func(ports []int) string {
		var s []string
		for _, p := range ports {
			s = append(s, strconv.Itoa(p))
		}
		return strings.Join(s, ",")
	}
	c.proxy, err = sup.Start(ctx, up.Command{Name: "proxy", Args: []string{
		"proxy", "--port", "0", "--prefiller-hosts", hosts(prefillers), "--prefiller-ports", join(ports[:prefillers]),
		"--decoder-hosts", hosts(decoders), "--decoder-ports", join(ports[prefillers:engines]), "--decoder-dp-size", "2",
		"--enable-decoder-append-prefill", "--continue-recomputed", "--scrape-interval", "200ms",
		"--admin-listen", c.admin, "--admin-token-file", token, "--trace-file", filepath.Join(dir, "proxy.jsonl"),
	}})
	return c, err
}

// start starts an engine that is down and notes what it uses when it is idle.
func (c *cluster) start(ctx context.Context, who int) error {
	m := c.members[who]
	c.mu.Lock()
	m.starts++
	name := fmt.Sprintf("%s.%d", m.name, m.starts)
	if m.back == nil {
		m.back = make(chan struct{}) // else that of its death, for which others wait
	}
	back := m.back
	c.mu.Unlock()
	child, err := c.sup.Start(ctx, up.Command{Name: name, Args: m.args})
	idle := usage{}
	if err == nil {
		idle, err = usageOf(ctx, child.URL(), child.PID())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(back)
	m.child, m.idle, m.err = child, idle, err
	if err != nil {
		m.child = nil
		return fmt.Errorf("start %s: %w", name, err)
	}
	return nil
}

// up waits until an engine is up and gives its process.
func (c *cluster) up(ctx context.Context, who int) (*up.Child, error) {
	for {
		c.mu.Lock()
		m := c.members[who]
		child, back, err := m.child, m.back, m.err
		c.mu.Unlock()
		if child != nil || err != nil {
			return child, err
		}
		select {
		case <-back:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// patience is how long a kill waits for its victim to have a request.
const patience = 400 * time.Millisecond

// kill ends an engine at once and says how many requests it had.
func (c *cluster) kill(ctx context.Context, who int) (inFlight float64, err error) {
	child, err := c.up(ctx, who)
	if err != nil {
		return 0, err
	}
	for end := time.Now().Add(patience); inFlight == 0 && time.Now().Before(end); {
		if inFlight, err = requestsOf(ctx, child.URL()); err != nil {
			return 0, err
		}
	}
	c.mu.Lock()
	m := c.members[who]
	m.child, m.back, m.err = nil, make(chan struct{}), nil
	c.mu.Unlock()
	return inFlight, c.sup.Kill(child)
}

// all gives the processes of all engines, which must be up.
func (c *cluster) all(ctx context.Context) ([]*up.Child, error) {
	var out []*up.Child
	for who := range c.members {
		child, err := c.up(ctx, who)
		if err != nil {
			return nil, err
		}
		if child == nil {
			return nil, errors.New(c.members[who].name + " is down")
		}
		out = append(out, child)
	}
	return out, nil
}
