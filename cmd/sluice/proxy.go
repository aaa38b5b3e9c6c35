package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-serving/sluice/proxy"
	"github.com/sluice-serving/sluice/proxy/route"
)

// listFlags may be followed by several values, with commas or spaces between them.
var listFlags = []string{"prefiller-hosts", "prefiller-ports", "decoder-hosts", "decoder-ports", "decoder-dp-size", "session-sources"}

type proxyFlags struct {
	host                           string
	port                           int
	prefillerHosts, prefillerPorts []string
	decoderHosts, decoderPorts     []string
	decoderSizes, sources          []string
	placement, unknown, logLevel   string
	retryDelay                     float64 // seconds
	drain                          time.Duration
	cfg                            proxy.Config
}

func newProxyCmd() *cobra.Command {
	var f proxyFlags
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Run the session-affine P/D proxy",
		Long: `Run the session-affine proxy in front of Prefillers and Decoders.

List flags take values separated by commas or by spaces. Hosts and ports are
paired in order. With --enable-decoder-append-prefill the turns of a session,
named by the header X-Session-ID or the body member conversation_id, are
attempted on the Decoder and rank that served the session before, and fall back
to the ordinary P/D route when that Decoder no longer holds the prefix.`,
		DisableFlagParsing: true, // list flags with spaces are joined first
	}
	f.define(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := cmd.Flags().Parse(proxy.JoinLists(args, listFlags...)); err != nil {
			return err
		}
		if help, err := cmd.Flags().GetBool("help"); err == nil && help {
			return cmd.Help()
		}
		if rest := cmd.Flags().Args(); len(rest) > 0 {
			return fmt.Errorf("unexpected argument %q", rest[0])
		}
		return f.run(cmd)
	}
	return cmd
}

func (f *proxyFlags) define(fs *pflag.FlagSet) {
	fs.StringVar(&f.host, "host", "127.0.0.1", "address to listen on")
	fs.IntVar(&f.port, "port", 8000, "port to listen on; 0 takes a free one")
	fs.StringSliceVar(&f.prefillerHosts, "prefiller-hosts", nil, "hosts of the Prefillers")
	fs.StringSliceVar(&f.prefillerPorts, "prefiller-ports", nil, "ports of the Prefillers")
	fs.StringSliceVar(&f.decoderHosts, "decoder-hosts", nil, "hosts of the Decoders")
	fs.StringSliceVar(&f.decoderPorts, "decoder-ports", nil, "ports of the Decoders")
	fs.StringSliceVar(&f.decoderSizes, "decoder-dp-size", nil, "data-parallel ranks behind each Decoder address: one number for all, or one for each")
	fs.BoolVar(&f.cfg.Append, "enable-decoder-append-prefill", false, "attempt follow-up turns on the Decoder that holds the session")
	fs.StringSliceVar(&f.sources, "session-sources", nil, "places that name a session, in order (default X-Session-ID,conversation_id)")
	fs.StringVar(&f.placement, "placement", "load", "where sessions without an owner go: load or hash")
	fs.StringVar(&f.unknown, "unknown-followups", "auto", "follow-ups of unknown sessions: auto (try with hash placement), try or pd")
	fs.DurationVar(&f.cfg.SessionTTL, "session-ttl", time.Hour, "how long an unused session is remembered")
	fs.IntVar(&f.cfg.MaxSessions, "max-sessions", 1_000_000, "sessions remembered at most")
	fs.IntVar(&f.cfg.MaxRetries, "max-retries", 3, "P/D rounds for one request, each on instances that have not failed it")
	fs.Float64Var(&f.retryDelay, "retry-delay", 0.001, "seconds before the second round, doubled for each later one")
	fs.Int64Var(&f.cfg.MaxBody, "max-body-bytes", 32<<20, "longest request body")
	fs.DurationVar(&f.cfg.PrefillTimeout, "prefill-timeout", 10*time.Minute, "until a Prefiller has answered")
	fs.DurationVar(&f.cfg.FirstTimeout, "first-timeout", 10*time.Minute, "until a Decoder begins its answer")
	fs.DurationVar(&f.cfg.IdleTimeout, "idle-timeout", 5*time.Minute, "between two parts of an answer")
	fs.DurationVar(&f.drain, "drain-timeout", 30*time.Second, "time for running requests at shutdown")
	fs.StringVar(&f.cfg.TraceFile, "trace-file", "", "append a JSON line per request to this file")
	fs.BoolVar(&f.cfg.RouteHeader, "route-header", false, "add X-Sluice-Route to answers")
	fs.StringVar(&f.logLevel, "log-level", "info", "debug, info, warning or error")
}

// config is the proxy's configuration as the flags and the environment say.
func (f *proxyFlags) config() (proxy.Config, error) {
	cfg := f.cfg
	var errs []error
	keep := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	var err error
	cfg.Prefillers, err = proxy.Addresses("prefiller", f.prefillerHosts, f.prefillerPorts)
	keep(err)
	decoders, err := proxy.Addresses("decoder", f.decoderHosts, f.decoderPorts)
	keep(err)
	cfg.Decoders, err = proxy.DecoderList(decoders, f.decoderSizes)
	keep(err)
	for _, name := range f.sources {
		s, err := route.ParseSource(name)
		keep(err)
		cfg.Sources = append(cfg.Sources, s)
	}
	switch f.placement {
	case "load":
		cfg.Placement = route.PlaceLoad
	case "hash":
		cfg.Placement = route.PlaceHash
	default:
		keep(fmt.Errorf("--placement %q: give load or hash", f.placement))
	}
	switch f.unknown {
	case "auto":
		cfg.Unknown = proxy.UnknownAuto
	case "try":
		cfg.Unknown = proxy.UnknownTry
	case "pd":
		cfg.Unknown = proxy.UnknownPD
	default:
		keep(fmt.Errorf("--unknown-followups %q: give auto, try or pd", f.unknown))
	}
	cfg.RetryDelay = time.Duration(f.retryDelay * float64(time.Second))
	cfg.APIKey = os.Getenv("OPENAI_API_KEY")
	var level slog.Level
	name := f.logLevel
	if name == "warning" {
		name = "warn"
	}
	if err := level.UnmarshalText([]byte(name)); err != nil {
		keep(fmt.Errorf("--log-level %q: give debug, info, warning or error", f.logLevel))
	}
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	if len(errs) == 0 {
		keep(cfg.Validate())
	}
	return cfg, errors.Join(errs...)
}

func (f *proxyFlags) run(cmd *cobra.Command) error {
	cfg, err := f.config()
	if err != nil {
		return err
	}
	p, err := proxy.New(cfg)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(f.host, strconv.Itoa(f.port)))
	if err != nil {
		return errors.Join(err, p.Close())
	}
	if _, err := fmt.Fprintf(cmd.OutOrStdout(), "listening on http://%s\n", l.Addr()); err != nil {
		return errors.Join(err, l.Close(), p.Close())
	}
	return p.Serve(cmd.Context(), l, f.drain)
}
