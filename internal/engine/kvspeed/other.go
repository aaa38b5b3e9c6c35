package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/sluice-serving/sluice/ascendrt/backends"
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/pd"
	"github.com/sluice-serving/sluice/kvcache"
)

// childEnv makes this program the other process: its value is a jsonSpec.
const childEnv = "KVSPEED_CHILD"

type jsonSpec struct {
	Device                       string
	Layers, Block, Blocks, Bytes int
	Places                       int // prompts that the blocks are for
}

// child is P: it answers a line with a seed and a place by the parameters of a finished
// prompt whose blocks lie in that place of its pool, in the seed's order.
func child(spec string, in io.Reader, out io.Writer) error {
	var j jsonSpec
	if err := json.Unmarshal([]byte(spec), &j); err != nil {
		return err
	}
	dev, err := open(j.Device)
	if err != nil {
		return err
	}
	p, err := newPool(dev, kvShape{j.Layers, j.Block, j.Blocks, j.Bytes})
	if err != nil {
		return err
	}
	if err := p.fill(context.Background(), mark); err != nil {
		return err
	}
	x, err := newSide(p, "p", pd.Producer, pullVariant{})
	if err != nil {
		return err
	}
	enc := json.NewEncoder(out)
	if err := enc.Encode("ready"); err != nil {
		return err
	}
	lines, broken := make(chan string), make(chan error, 1)
	go func() {
		defer close(lines)
		x := bufio.NewScanner(in)
		for x.Scan() {
			lines <- x.Text()
		}
		broken <- x.Err()
	}()
	slot := uint32(0)
	for {
		select {
		case ev := <-x.w.Events(): // released
			x.s.Completed(ev)
		case text, more := <-lines:
			if !more {
				return errors.Join(<-broken, x.w.Close(), p.close(), dev.Close(context.Background()))
			}
			slot++
			params, err := x.finish(slot, j, text)
			if err != nil {
				return err
			}
			if err := enc.Encode(params); err != nil {
				return err
			}
		}
	}
}

// finish ends a prompt at P, whose blocks a line of a seed and a place names.
func (x *side) finish(slot uint32, j jsonSpec, text string) (any, error) {
	var seed uint64
	var place int
	if _, err := fmt.Sscan(text, &seed, &place); err != nil {
		return nil, err
	}
	blocks := j.Blocks / j.Places
	n := blocks * j.Block
	r := &connector.Request{
		ID: connector.NewRequestID(slot, 1), Name: fmt.Sprint("p-", slot), Tokens: make([]kvcache.Token, n+1), Prompt: n,
		Params: &pd.Params{DoRemoteDecode: true},
	}
	h := x.s.Finished(r, connector.Tables{orderAt(blocks, seed, place)}, connector.End{Reason: connector.EndLength, Computed: n})
	return h.Params, x.w.Submit(x.s.Ops(uint64(slot), nil)...)
}

// other is the child, as the parent sees it.
type other struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// startOther starts one whose pool has blocks for so many prompts.
func startOther(device string, s kvShape, places int) (*other, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	spec, err := json.Marshal(jsonSpec{device, s.layers, s.block, s.blocks, s.bytes, places})
	if err != nil {
		return nil, err
	}
	o := &other{cmd: exec.Command(exe)}
	o.cmd.Env = append(os.Environ(), childEnv+"="+string(spec))
	o.cmd.Stderr = os.Stderr
	if o.in, err = o.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := o.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := o.cmd.Start(); err != nil {
		return nil, err
	}
	o.out = json.NewDecoder(out)
	var ready string
	if err := o.out.Decode(&ready); err != nil {
		return nil, errors.Join(fmt.Errorf("the other process did not start: %w", err), o.end())
	}
	return o, nil
}

// prompt has the other process finish one.
func (o *other) prompt(seed uint64, place int) (*pd.Params, error) {
	if _, err := fmt.Fprintln(o.in, seed, place); err != nil {
		return nil, err
	}
	var raw json.RawMessage
	if err := o.out.Decode(&raw); err != nil {
		return nil, err
	}
	return pd.ParseParams(raw)
}

func (o *other) end() error {
	o.in.Close()
	return o.cmd.Wait()
}

// peerDevices are the devices of the other process.
func peerDevices(ctx context.Context, o options) ([]string, error) {
	if o.peers != "" {
		return splitList(o.peers), nil
	}
	b, n, err := backends.Find(o.device)
	if err != nil {
		return nil, err
	}
	report, err := b.Probe(ctx)
	if err != nil {
		return nil, err
	}
	out := []string{o.device}
	if len(report.Devices) > n+1 {
		out = append(out, fmt.Sprintf("%s:%d", b.Name(), n+1))
	}
	return out, nil
}
