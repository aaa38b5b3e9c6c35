package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Options says how Run brings a cluster up.
type Options struct {
	Cluster Cluster
	Model   string // that requests name
	Dir     string // for the log, the trace files and request.json
	Config  Config // Log is made from Dir
}

// Run starts the cluster, has the first turn of the example conversation with
// it, prints the two forms of its follow-up to out, and keeps the cluster up
// until ctx ends or a process dies. It returns after every process has ended.
func Run(ctx context.Context, o Options, out io.Writer) (err error) {
	s, stop, err := NewIn(o.Dir, Overwrite, o.Config)
	if err != nil {
		return err
	}
	defer func() {
		fmt.Fprintln(out, "stopping")
		err = errors.Join(err, stop())
	}()
	fmt.Fprintln(out, "starting one Prefiller, one Decoder and the proxy; their output goes to", filepath.Join(o.Dir, LogFile))
	r, err := o.Cluster.Start(ctx, s, AppendPrefill)
	if err != nil {
		return quiet(ctx, err)
	}
	if err := greet(ctx, &o, r, out); err != nil {
		return quiet(ctx, err)
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.Deaths():
		return err
	}
}

// quiet makes the end of ctx an ordinary end.
func quiet(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func greet(ctx context.Context, o *Options, r *Running, out io.Writer) error {
	for _, c := range []*Child{r.Prefiller, r.Decoder, r.Proxy} {
		fmt.Fprintf(out, "  %-6s %s  pid %d\n", c.Name(), c.URL(), c.PID())
	}
	talk, err := Converse(ctx, r.Proxy.URL(), o.Model)
	if err != nil {
		return err
	}
	file := filepath.Join(o.Dir, "request.json")
	if err := os.WriteFile(file, talk.RequestFile(), 0o644); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, `
The first turn of session %s went through the Prefiller. Its follow-up is prefilled on the
Decoder that holds the conversation; both forms name the session, one in a header, one in the body:

%s

%s

Ctrl-C ends the cluster.
`, SessionID, talk.HeaderCurl(), talk.BodyCurl(file))
	return err
}
