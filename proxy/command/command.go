// Package command is the command line of the proxy: flags, the configuration
// file, and the wiring of listeners and signals. It decides nothing.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-serving/sluice/proxy"
)

// Options are what a binary brings along beside the proxy itself. A binary
// without them has no session store and no membership: they need client
// libraries that most do not want.
type Options struct {
	// Stores open session stores, by the scheme of the URL that names one.
	Stores map[string]OpenStore
	// Memberships open sets of instances, by the scheme of the URL that names one.
	Memberships map[string]OpenMembership
	// Trace opens the provider that spans go to; it may give none.
	Trace func(ctx context.Context) (Tracing, error)
}

// Tracing is a provider of spans that is closed after the proxy has ended.
type Tracing interface {
	trace.TracerProvider
	io.Closer
}

// OpenStore opens a session store whose values live for ttl. It is closed after
// the proxy has ended.
type OpenStore func(ctx context.Context, u *url.URL, ttl time.Duration) (proxy.Store, io.Closer, error)

// OpenMembership opens a set of instances. It is closed after the proxy has ended.
type OpenMembership func(ctx context.Context, u *url.URL) (proxy.Membership, io.Closer, error)

// listFlags may be followed by several values, with commas or spaces between them.
var listFlags = []string{"prefiller-hosts", "prefiller-ports", "decoder-hosts", "decoder-ports", "decoder-dp-size", "session-sources"}

// proxyFlags are what the command line says beside the configuration file.
type proxyFlags struct {
	proxy.File
	host                           string
	port                           int
	prefillerHosts, prefillerPorts []string
	decoderHosts, decoderPorts     []string
	decoderSizes                   []string
	backend, mode                  string
	suffix, appendTokens, attempts int
	tpot                           time.Duration
	both, continued                bool
	retryDelay, waitInterval       float64 // seconds
	config                         string
	check                          bool
	set                            *pflag.FlagSet
	options                        Options
}

// New makes the command.
func New(options Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Run the session-affine P/D proxy",
		Long: `Run the session-affine proxy in front of Prefillers and Decoders.

List flags take values separated by commas or by spaces. Hosts and ports are
paired in order. With --enable-decoder-append-prefill the turns of a session,
named by the header X-Session-ID or the body member conversation_id, are
attempted on the Decoder and rank that served the session before, and fall back
to the ordinary P/D route when that Decoder no longer holds the prefix.

A configuration file says the same and more; flags override it. --check prints
the effective configuration, with the rules of every Decoder pool, and ends.
The key for the backends comes from OPENAI_API_KEY.`,
		Example: `  sluice proxy --prefiller-hosts 10.0.0.1 --prefiller-ports 8100 \
    --decoder-hosts 10.0.0.2 10.0.0.3 --decoder-ports 8200 8200 --decoder-dp-size 2 \
    --enable-decoder-append-prefill
  sluice proxy --config /etc/sluice/proxy.yaml --check`,
		DisableFlagParsing: true, // list flags with spaces are joined first
	}
	f := &proxyFlags{options: options}
	f.define(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		args = proxy.JoinLists(args, listFlags...)
		if err := cmd.Flags().Parse(args); err != nil {
			return fmt.Errorf("%w (%s --help lists what there is)", err, cmd.CommandPath())
		}
		if help, err := cmd.Flags().GetBool("help"); err == nil && help {
			return cmd.Help()
		}
		if rest := cmd.Flags().Args(); len(rest) > 0 {
			return fmt.Errorf("unexpected argument %q (%s --help lists what there is)", rest[0], cmd.CommandPath())
		}
		if f.config == "" {
			return f.run(cmd)
		}
		file, err := readProxyFile(f.config)
		if err != nil {
			return err
		}
		over := &proxyFlags{File: file, options: options}
		fs := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
		over.define(fs)
		if err := fs.Parse(args); err != nil {
			return err
		}
		return over.run(cmd)
	}
	return cmd
}

func readProxyFile(path string) (proxy.File, error) {
	src, err := os.Open(path)
	if err != nil {
		return proxy.File{}, err
	}
	defer src.Close()
	return proxy.ReadFile(src)
}

// define binds the flags; what the file already says is their default.
func (f *proxyFlags) define(fs *pflag.FlagSet) {
	f.set = fs
	duration := func(to *proxy.Duration, name, usage string) {
		fs.DurationVar((*time.Duration)(to), name, time.Duration(*to), usage)
	}
	fs.StringVar(&f.host, "host", "127.0.0.1", "address to listen on")
	fs.IntVar(&f.port, "port", 8000, "port to listen on; 0 takes a free one")
	fs.StringSliceVar(&f.prefillerHosts, "prefiller-hosts", nil, "hosts of the Prefillers")
	fs.StringSliceVar(&f.prefillerPorts, "prefiller-ports", nil, "ports of the Prefillers")
	fs.StringSliceVar(&f.decoderHosts, "decoder-hosts", nil, "hosts of the Decoders")
	fs.StringSliceVar(&f.decoderPorts, "decoder-ports", nil, "ports of the Decoders")
	fs.StringSliceVar(&f.decoderSizes, "decoder-dp-size", nil, "data-parallel ranks behind each Decoder address: one number for all, or one for each")
	fs.BoolVar(&f.AppendPrefill, "enable-decoder-append-prefill", f.AppendPrefill, "attempt follow-up turns on the Decoder that holds the session")
	fs.StringVar(&f.backend, "backend", "sluice", "how the Decoders are asked and refuse: sluice, vllm-ascend, cache-threshold, llm-d or plain")
	fs.StringVar(&f.mode, "kv-mode", "pull", "who moves the KV: pull (the Decoder) or push (the Prefiller, layer by layer)")
	fs.StringVar(&f.Metaserver, "metaserver-url", f.Metaserver, "URL of /v1/metaserver as the Decoders reach it, for push mode (default from the listen address)")
	fs.IntVar(&f.suffix, "max-suffix-tokens", -1, "longest predicted suffix that is attempted; 0 is no bound, -1 the preset's")
	fs.IntVar(&f.appendTokens, "max-append-tokens-in-flight", -1, "predicted suffix tokens attempted at a time per rank; 0 is no bound, -1 the preset's")
	fs.IntVar(&f.attempts, "max-local-attempts", -1, "attempts at a time per rank; 0 is no bound, -1 the preset's")
	fs.DurationVar(&f.tpot, "tpot-target", 0, "time per output token of a rank's streams above which nothing is attempted there; 0 is none")
	fs.BoolVar(&f.both, "bidirectional-kv-xfer", false, "have the next turn's prompt read back from the Decoder that kept the last one's blocks")
	fs.BoolVar(&f.continued, "continue-recomputed", false, "continue answers that a Decoder gives up, from their token ids")
	fs.StringSliceVar(&f.Sessions.Sources, "session-sources", f.Sessions.Sources, "places that name a session, in order (default X-Session-ID,conversation_id)")
	fs.StringVar(&f.Sessions.Placement, "placement", f.Sessions.Placement, "where sessions without an owner go: load, hash or room (default load)")
	fs.StringVar(&f.Sessions.Unknown, "unknown-followups", f.Sessions.Unknown, "follow-ups of unknown sessions: auto (try with hash placement), try or pd (default auto)")
	duration(&f.Sessions.TTL, "session-ttl", "how long an unused session is remembered (default 1h)")
	fs.IntVar(&f.Sessions.Max, "max-sessions", f.Sessions.Max, "sessions remembered at most (default 1000000)")
	fs.IntVar(&f.Retry.Max, "max-retries", f.Retry.Max, "P/D rounds for one request, each on instances that have not failed it (default 3)")
	fs.Float64Var(&f.retryDelay, "retry-delay", 0.001, "seconds before the second round, doubled for each later one")
	fs.IntVar(&f.Join.Tries, "max-waiting-retries", f.Join.Tries, "times an instance that joins is asked whether it is ready (default 3)")
	fs.Float64Var(&f.waitInterval, "waiting-retry-interval", 10, "seconds between two such questions to an instance that joins")
	fs.Int64Var(&f.Limits.MaxBody, "max-body-bytes", f.Limits.MaxBody, "longest request body (default 32 MiB)")
	fs.IntVar(&f.Limits.MaxConnections, "max-connections", f.Limits.MaxConnections, "client connections at a time; 0 is no bound")
	fs.IntVar(&f.Limits.PerTenant, "tenant-concurrency", f.Limits.PerTenant, "requests of one API key at a time; 0 is no bound")
	fs.IntVar(&f.Limits.Queue, "tenant-queue", f.Limits.Queue, "requests of one API key that wait; beyond it the answer is 429")
	duration(&f.Timeouts.Prefill, "prefill-timeout", "until a Prefiller has answered (default 10m)")
	duration(&f.Timeouts.First, "first-timeout", "until a Decoder begins its answer (default 10m)")
	duration(&f.Timeouts.Idle, "idle-timeout", "between two parts of an answer (default 5m)")
	duration(&f.Drain, "drain-timeout", "time for running requests at shutdown (default 30s)")
	duration(&f.ScrapeEvery, "scrape-interval", "how often the load gauges of instances are read; negative is never (default 1s)")
	fs.StringVar(&f.Sessions.Store, "session-store", f.Sessions.Store, "URL of a store that keeps the owners of sessions for all replicas"+have(f.options.Stores))
	fs.StringVar(&f.Membership, "membership", f.Membership, "URL of a set of instances that is followed"+have(f.options.Memberships))
	fs.StringVar(&f.InstancesFile, "instances-file", f.InstancesFile, "file with the set of instances, watched")
	fs.StringVar(&f.Admin.Listen, "admin-listen", f.Admin.Listen, "host:port of the admin listener with the status page; none by default")
	fs.StringVar(&f.Admin.TokenFile, "admin-token-file", f.Admin.TokenFile, "file with the admin listener's token (or SLUICE_ADMIN_TOKEN)")
	fs.StringVar(&f.TLS.Cert, "tls-cert", f.TLS.Cert, "certificate of the proxy")
	fs.StringVar(&f.TLS.Key, "tls-key", f.TLS.Key, "key of the proxy's certificate")
	fs.StringVar(&f.TLS.BackendCA, "backend-ca", f.TLS.BackendCA, "speak TLS to the instances and trust this authority")
	fs.StringVar(&f.Keys.ClientsFile, "api-keys-file", f.Keys.ClientsFile, "accept only these API keys: a key a line, or name=key")
	fs.BoolVar(&f.Keys.Pass, "pass-authorization", f.Keys.Pass, "send the client's Authorization to the instances")
	fs.StringVar(&f.TraceFile, "trace-file", f.TraceFile, "append a JSON line per request to this file")
	fs.BoolVar(&f.RouteHeader, "route-header", f.RouteHeader, "add X-Sluice-Route to answers")
	fs.BoolVar(&f.AccessLog, "access-log", f.AccessLog, "log a line per request")
	fs.StringVar(&f.LogLevel, "log-level", f.LogLevel, "debug, info, warning or error (default info)")
	fs.StringVar(&f.config, "config", "", "configuration file in YAML")
	fs.BoolVar(&f.check, "check", false, "print the effective configuration and end")
}

// merge takes what the flags say about instances and times into the file.
func (f *proxyFlags) merge() error {
	prefillers, errP := proxy.Addresses("prefiller", f.prefillerHosts, f.prefillerPorts)
	decoders, errD := proxy.Addresses("decoder", f.decoderHosts, f.decoderPorts)
	list, errL := proxy.DecoderList(decoders, f.decoderSizes)
	if err := errors.Join(errP, errD, errL); err != nil {
		return err
	}
	if len(prefillers) > 0 {
		f.Prefillers = prefillers
	}
	if len(list) > 0 {
		pool := proxy.FilePool{Backend: f.backend, Mode: f.mode}
		for _, d := range list {
			pool.Instances = append(pool.Instances, proxy.FileNode{Addr: d.Addr, Ranks: d.Ranks})
		}
		f.Decoders = []proxy.FilePool{pool}
	}
	for i := range f.Decoders {
		f.pool(&f.Decoders[i])
	}
	if err := f.checkNumbers(); err != nil {
		return err
	}
	if f.set.Changed("retry-delay") {
		f.Retry.Delay = proxy.Duration(f.retryDelay * float64(time.Second))
	}
	if f.set.Changed("waiting-retry-interval") {
		f.Join.Interval = proxy.Duration(f.waitInterval * float64(time.Second))
	}
	if f.Listen == "" || f.set.Changed("host") || f.set.Changed("port") {
		f.Listen = net.JoinHostPort(f.host, strconv.Itoa(f.port))
	}
	if f.Metaserver == "" && f.port != 0 && slices.ContainsFunc(f.Decoders, func(p proxy.FilePool) bool { return p.Mode == "push" }) {
		f.Metaserver = "http://" + f.Listen + "/v1/metaserver"
	}
	return proxy.CheckListen(f.Listen)
}

// pool applies the flags that concern every pool.
func (f *proxyFlags) pool(p *proxy.FilePool) {
	guard := func() *proxy.FileGuard {
		if p.Guard == nil {
			p.Guard = &proxy.FileGuard{}
		}
		return p.Guard
	}
	if f.suffix >= 0 {
		guard().MaxSuffixTokens = &f.suffix
	}
	if f.appendTokens >= 0 {
		guard().MaxAppendTokensInFlight = &f.appendTokens
	}
	if f.attempts >= 0 {
		guard().MaxLocalAttempts = &f.attempts
	}
	if f.set.Changed("tpot-target") {
		guard().TPOTTarget = (*proxy.Duration)(&f.tpot)
	}
	if f.set.Changed("bidirectional-kv-xfer") {
		p.Both = f.both
	}
	if f.set.Changed("continue-recomputed") {
		p.Continue = &f.continued
	}
}

func (f *proxyFlags) logger() (*slog.Logger, error) {
	name := f.LogLevel
	switch name {
	case "":
		name = "info"
	case "warning":
		name = "warn"
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(name)); err != nil {
		return nil, fmt.Errorf("log level %q: give debug, info, warning or error", f.LogLevel)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})), nil
}

func (f *proxyFlags) run(cmd *cobra.Command) error {
	errMerge := f.merge()
	logger, errLog := f.logger()
	if err := errors.Join(errMerge, errLog); err != nil {
		return err
	}
	cfg, token, err := f.Load()
	if err != nil {
		return err
	}
	cfg.APIKey, cfg.Logger = os.Getenv("OPENAI_API_KEY"), logger
	out := cmd.OutOrStdout()
	if err := f.options.check(cfg); err != nil {
		return err
	}
	if f.check {
		text, err := proxy.Effective(cfg, f.Listen)
		if err != nil {
			return err
		}
		_, err = out.Write(text)
		return err
	}
	closers, err := f.options.open(cmd.Context(), &cfg)
	defer func() {
		for _, c := range closers {
			_ = c.Close() // the proxy has ended, nothing is lost
		}
	}()
	if err != nil {
		return err
	}
	p, err := proxy.New(cfg)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", f.Listen)
	if err != nil {
		return errors.Join(err, p.Close())
	}
	scheme := "http"
	if cfg.TLS != nil {
		scheme = "https"
	}
	var admin net.Listener
	if f.Admin.Listen != "" {
		if admin, err = net.Listen("tcp", f.Admin.Listen); err != nil {
			return errors.Join(err, l.Close(), p.Close())
		}
		_, err = fmt.Fprintf(out, "admin on http://%s/ui\n", admin.Addr())
	}
	_, err2 := fmt.Fprintf(out, "listening on %s://%s\n", scheme, l.Addr())
	if err := errors.Join(err, err2); err != nil {
		return errors.Join(err, l.Close(), p.Close())
	}
	drain := time.Duration(f.Drain)
	if drain == 0 {
		drain = 30 * time.Second
	}
	group, ctx := errgroup.WithContext(cmd.Context())
	if admin != nil {
		srv := &http.Server{Handler: p.Admin(token), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second}
		group.Go(func() error {
			if err := srv.Serve(admin); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
		group.Go(func() error {
			<-ctx.Done()
			return srv.Close()
		})
	}
	group.Go(func() error {
		err := p.Serve(ctx, l, drain)
		if err == nil && ctx.Err() == nil {
			err = errors.New("the proxy stopped serving")
		}
		return err
	})
	return group.Wait()
}

// have names the schemes that a binary can open, for a flag's help.
func have[T any](openers map[string]T) string {
	if len(openers) == 0 {
		return " (none in this binary: build the one in proxy/shared)"
	}
	return " (" + strings.Join(slices.Sorted(maps.Keys(openers)), ", ") + ")"
}

// check reports what the configuration names by URL and this binary cannot open.
func (o Options) check(cfg proxy.Config) error {
	var errs [2]error
	if cfg.StoreURL != "" {
		_, _, errs[0] = opener("session store", cfg.StoreURL, o.Stores)
	}
	if cfg.MembershipURL != "" {
		_, _, errs[1] = opener("membership", cfg.MembershipURL, o.Memberships)
	}
	return errors.Join(errs[:]...)
}

// open opens what the configuration names by URL.
func (o Options) open(ctx context.Context, cfg *proxy.Config) (closers []io.Closer, err error) {
	if o.Trace != nil {
		spans, err := o.Trace(ctx)
		if err != nil {
			return nil, fmt.Errorf("tracing: %w", err)
		}
		if spans != nil {
			cfg.Tracing, closers = spans, append(closers, spans)
		}
	}
	if cfg.StoreURL != "" {
		u, open, err := opener("session store", cfg.StoreURL, o.Stores)
		if err != nil {
			return closers, err
		}
		ttl := cfg.SessionTTL
		if ttl == 0 {
			ttl = time.Hour
		}
		store, closer, err := open(ctx, u, ttl)
		if err != nil {
			return closers, fmt.Errorf("session store %s: %w", u.Redacted(), err)
		}
		cfg.Store, closers = store, append(closers, closer)
	}
	if cfg.MembershipURL != "" {
		u, open, err := opener("membership", cfg.MembershipURL, o.Memberships)
		if err != nil {
			return closers, err
		}
		members, closer, err := open(ctx, u)
		if err != nil {
			return closers, fmt.Errorf("membership %s: %w", u.Redacted(), err)
		}
		cfg.Membership, closers = members, append(closers, closer)
	}
	return closers, nil
}

func opener[T any](what, text string, openers map[string]T) (*url.URL, T, error) {
	u, err := url.Parse(text)
	if err != nil {
		var none T
		return nil, none, fmt.Errorf("%s: the URL cannot be read", what) // it may hold a password
	}
	open, ok := openers[u.Scheme]
	if !ok {
		return nil, open, fmt.Errorf("%s: this binary cannot open %q%s", what, u.Scheme, have(openers))
	}
	return u, open, nil
}
