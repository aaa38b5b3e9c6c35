package up

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
)

// Caching says whether an engine reuses the KV of earlier prompts.
type Caching uint8

// The kinds of caching.
const (
	PrefixCaching Caching = iota
	NoCaching
)

func (c Caching) String() string {
	if c == NoCaching {
		return "off"
	}
	return "on"
}

// Routing says whether a proxy tries a session's owner before the Prefiller.
type Routing uint8

// The kinds of routing.
const (
	OrdinaryPD Routing = iota
	AppendPrefill
)

func (r Routing) String() string {
	if r == AppendPrefill {
		return "append-prefill"
	}
	return "ordinary P/D"
}

// NoAppend is the profile of a Decoder that does not admit append-prefill.
const NoAppend = "off"

// Engine holds the sizes of one engine; zero means the engine's default.
type Engine struct {
	Device    string // empty: the cluster's
	Caching   Caching
	Blocks    int // KV blocks of each rank
	BlockSize int // tokens
	MaxSeqs   int // requests that run at once on a rank
	StepLimit int // tokens of one step
	MaxLen    int // tokens of a prompt with its output
	Workers   int // CPU cores of an operation
	Ranks     int // DP ranks in the one process; 0: 1
	Extra     []string
	Transfer  string // its --kv-transfer-config; empty: the pd connector with its role
}

func (e *Engine) args() []string {
	var args []string
	add := func(flag string, v int) {
		if v != 0 {
			args = append(args, flag, strconv.Itoa(v))
		}
	}
	add("--num-kv-blocks", e.Blocks)
	add("--block-size", e.BlockSize)
	add("--max-num-seqs", e.MaxSeqs)
	add("--max-num-batched-tokens", e.StepLimit)
	add("--max-model-len", e.MaxLen)
	add("--device-workers", e.Workers)
	add("--data-parallel-size", e.Ranks)
	if e.Caching == NoCaching {
		args = append(args, "--no-enable-prefix-caching")
	} else {
		args = append(args, "--enable-prefix-caching")
	}
	return append(args, e.Extra...)
}

// transfer is the engine's connector.
func (e *Engine) transfer(role string) string {
	if e.Transfer != "" {
		return e.Transfer
	}
	return `{"kv_connector":"pd","kv_role":"` + role + `"}`
}

// drainTimeout is how long an engine may finish its requests after SIGTERM; it
// lies below DefaultGrace, so that an engine that drains is not killed.
const drainTimeout = "5s"

// Cluster describes one Prefiller, one Decoder and a proxy on the loopback interface.
type Cluster struct {
	Host      string // empty: 127.0.0.1
	Port      int    // of the proxy; 0: any free one
	Model     string // empty: the built-in one
	Device    string // empty: host
	Prefiller Engine
	Decoder   Engine
	Profile   string // of append-prefill on the Decoder; empty: guarded; NoAppend: none
	Guards    string // JSON object of single guards beside the profile; empty: as the profile has them
	TraceDir  string // where each process keeps its trace file; empty: none
}

func (c *Cluster) host() string {
	if c.Host == "" {
		return "127.0.0.1"
	}
	return c.Host
}

// TraceFile is the trace file of the process with that name; empty without a TraceDir.
func (c *Cluster) TraceFile(name string) string {
	if c.TraceDir == "" {
		return ""
	}
	return filepath.Join(c.TraceDir, name+".jsonl")
}

func (c *Cluster) serve(name string, e *Engine) []string {
	args := []string{"serve", "--host", c.host(), "--port", "0", "--drain-timeout", drainTimeout}
	if c.Model != "" {
		args = append(args, "--model", c.Model)
	}
	if device := cmp.Or(e.Device, c.Device); device != "" {
		args = append(args, "--device", device)
	}
	args = append(args, e.args()...)
	if c.TraceDir != "" {
		args = append(args, "--trace-file", c.TraceFile(name))
	}
	return args
}

// PrefillerCommand starts the Prefiller.
func (c *Cluster) PrefillerCommand(name string) Command {
	return Command{Name: name, Args: append(c.serve(name, &c.Prefiller),
		"--kv-transfer-config", c.Prefiller.transfer("kv_producer"))}
}

// DecoderCommand starts the Decoder; it admits append-prefill unless the
// profile is NoAppend.
func (c *Cluster) DecoderCommand(name string) Command {
	args := append(c.serve(name, &c.Decoder), "--kv-transfer-config", c.Decoder.transfer("kv_consumer"))
	if c.Profile == NoAppend {
		return Command{Name: name, Args: args}
	}
	guards := ""
	if c.Guards != "" {
		guards = `,"decoder_append_prefill_guards":` + c.Guards
	}
	return Command{Name: name, Args: append(args, "--additional-config",
		fmt.Sprintf(`{"scheduler_config":{"decoder_append_prefill_enable":true,"decoder_append_prefill_profile":%q%s}}`, cmp.Or(c.Profile, "guarded"), guards))}
}

// AloneCommand starts an engine that serves by itself.
func (c *Cluster) AloneCommand(name string, e Engine) Command {
	return Command{Name: name, Args: c.serve(name, &e)}
}

// ProxyCommand starts the proxy in front of a Prefiller and a Decoder.
func (c *Cluster) ProxyCommand(name string, routing Routing, prefiller, decoder *Child) (Command, error) {
	pHost, pPort, err := address(prefiller)
	if err != nil {
		return Command{}, err
	}
	dHost, dPort, err := address(decoder)
	if err != nil {
		return Command{}, err
	}
	args := []string{
		"proxy", "--host", c.host(), "--port", strconv.Itoa(c.Port),
		"--prefiller-hosts", pHost, "--prefiller-ports", pPort,
		"--decoder-hosts", dHost, "--decoder-ports", dPort, "--decoder-dp-size", strconv.Itoa(max(c.Decoder.Ranks, 1)),
	}
	if routing == AppendPrefill {
		args = append(args, "--enable-decoder-append-prefill")
	}
	if c.TraceDir != "" {
		args = append(args, "--trace-file", c.TraceFile(name))
	}
	return Command{Name: name, Args: args}, nil
}

func address(c *Child) (host, port string, err error) {
	u, err := url.Parse(c.URL())
	if err != nil {
		return "", "", fmt.Errorf("address of %s: %w", c.Name(), err)
	}
	return u.Hostname(), u.Port(), nil
}

// CheckPort reports whether the proxy's port is free.
func (c *Cluster) CheckPort() error {
	if c.Port == 0 {
		return nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(c.host(), strconv.Itoa(c.Port)))
	if err != nil {
		return fmt.Errorf("the proxy's port is taken: %w", err)
	}
	return l.Close()
}

// Running is a cluster whose processes are ready. The Supervisor owns them.
type Running struct{ Prefiller, Decoder, Proxy *Child }

// Start starts the three processes. On an error those already started are left
// to the supervisor's StopAll.
func (c *Cluster) Start(ctx context.Context, s *Supervisor, routing Routing) (*Running, error) {
	if err := c.CheckPort(); err != nil {
		return nil, err
	}
	r := new(Running)
	var err error
	if r.Prefiller, err = s.Start(ctx, c.PrefillerCommand("p0")); err != nil {
		return nil, err
	}
	if r.Decoder, err = s.Start(ctx, c.DecoderCommand("d0")); err != nil {
		return nil, err
	}
	proxy, err := c.ProxyCommand("proxy", routing, r.Prefiller, r.Decoder)
	if err != nil {
		return nil, err
	}
	if r.Proxy, err = s.Start(ctx, proxy); err != nil {
		return nil, err
	}
	return r, nil
}
