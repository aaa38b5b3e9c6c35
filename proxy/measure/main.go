//go:build linux

// Command measure measures what the proxy adds: latency on both routes,
// requests per second, the delay of streams and the memory of many of them.
// Proxy, backends and load generator are processes of their own on loopback;
// the same calls are sent directly to the backends in the same run.
//
//	make measure-proxy
//
// It prints a table in Markdown. Every part is bounded in count and time.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type options struct {
	sluice   string
	only     string
	requests int
	seconds  int
	streams  int
	many     int
	rounds   int
	body     int
	cpus     string
	tick     time.Duration
}

func main() {
	var o options
	role := flag.String("role", "", "internal: backend or awake")
	flag.StringVar(&o.sluice, "sluice", "bin/sluice", "the sluice binary")
	flag.StringVar(&o.only, "only", "", "run one part: latency, throughput, streams or memory")
	flag.IntVar(&o.requests, "requests", 2000, "requests of each latency measurement")
	flag.IntVar(&o.seconds, "seconds", 10, "duration of the throughput measurement")
	flag.IntVar(&o.streams, "streams", 1000, "streams of the delay measurement")
	flag.IntVar(&o.rounds, "rounds", 5, "streams one after the other on each connection of the delay measurement, the first a warm-up")
	flag.IntVar(&o.many, "many", 5000, "streams of the memory measurement")
	flag.IntVar(&o.body, "body", 48<<10, "bytes of a chat body")
	flag.StringVar(&o.cpus, "cpus", "", "keep everything to these processors, as 0,1; empty leaves the choice to the kernel")
	flag.DurationVar(&o.tick, "tick", 500*time.Microsecond, "how often backends send what is due of their streams and the generator looks at what has come")
	flag.Parse()
	if o.tick < 10*time.Microsecond || o.tick > 20*time.Millisecond {
		fmt.Fprintf(os.Stderr, "measure: -tick %v: between 10µs and 20ms is possible\n", o.tick)
		os.Exit(2)
	}
	// Backends and generator are helpers beside the proxy: each keeps to one
	// processor, and takes no time with looking for work on others. The proxy
	// runs as it would anywhere.
	runtime.GOMAXPROCS(1)
	err := pin(o.cpus)
	if err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(2)
	}
	switch *role {
	case "backend":
		err = runBackend(o.tick)
	case "awake":
		err = runAwake(os.Getppid())
	default:
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(1)
	}
}

// process is a child that prints the address it listens on in its first line.
type process struct {
	cmd  *exec.Cmd
	addr string
}

func launch(name string, args ...string) (*process, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s said nothing: %w", name, err), p.stop())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }() // ends with the child
	_, p.addr, _ = strings.Cut(strings.TrimSpace(line), "://")
	return p, nil
}

func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-done
	}
	return nil
}

// memory is a size in MiB from the process's status: VmHWM or VmRSS.
func (p *process) memory(key string) float64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			kb, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kb / 1024
		}
	}
	return 0
}

// bench is the set of processes of one part.
type bench struct {
	p, d, proxy *process
}

func setUp(o options, flags ...string) (*bench, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b := &bench{}
	if b.p, err = launch(self, "-role", "backend", "-tick", o.tick.String()); err != nil {
		return nil, err
	}
	if b.d, err = launch(self, "-role", "backend", "-tick", o.tick.String()); err != nil {
		return nil, errors.Join(err, b.stop())
	}
	ph, pp, _ := strings.Cut(b.p.addr, ":")
	dh, dp, _ := strings.Cut(b.d.addr, ":")
	args := append([]string{"proxy", "--port", "0", "--prefiller-hosts", ph, "--prefiller-ports", pp, "--decoder-hosts", dh, "--decoder-ports", dp,
		"--enable-decoder-append-prefill", "--log-level", "error"}, flags...)
	if b.proxy, err = launch(o.sluice, args...); err != nil {
		return nil, errors.Join(err, b.stop())
	}
	return b, nil
}

func (b *bench) stop() error {
	var errs []error
	for _, p := range []*process{b.proxy, b.d, b.p} {
		if p != nil {
			errs = append(errs, p.stop())
		}
	}
	return errors.Join(errs...)
}

// loadAverage says how busy the machine is: the kernel's averages over 1, 5 and
// 15 minutes.
func loadAverage() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if f := strings.Fields(string(raw)); err == nil && len(f) >= 3 {
		return strings.Join(f[:3], " ")
	}
	return "unknown"
}

func run(o options) error {
	fmt.Printf("%s, %d cores, %s/%s, load average before the run %s\n\n", runtime.Version(), cores(), runtime.GOOS, runtime.GOARCH, loadAverage())
	fmt.Println("| measurement | direct | through the proxy | added or share |")
	fmt.Println("|---|---|---|---|")
	for _, part := range []struct {
		name string
		run  func(options) error
	}{{"latency", latency}, {"throughput", throughput}, {"streams", streams}, {"memory", memory}} {
		if o.only != "" && o.only != part.name {
			continue
		}
		if err := part.run(o); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	fmt.Printf("\nload average after the run %s\n", loadAverage())
	return nil
}
