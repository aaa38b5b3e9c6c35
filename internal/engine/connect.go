package engine

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/multi"
	"github.com/sluice-serving/sluice/connector/offload"
	"github.com/sluice-serving/sluice/connector/pd"
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/faulty"
	"github.com/sluice-serving/sluice/connector/transport/ipc"
	"github.com/sluice-serving/sluice/connector/transport/mooncake"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
	"github.com/sluice-serving/sluice/connector/transport/ucx"
)

// links are the connectors of a rank by kind; nil where there is none.
type links struct {
	pd      *pd.Scheduler
	pdw     *pd.Worker
	offload *offload.Scheduler
	offw    *offload.Worker
	layered connector.Layered // told of prompts while they are computed

	in, out    uint64        // bytes of KV that the metrics have
	direct     uint64        // of in, past the connections
	connection uint64        // of in, on them
	far        uint64        // as the metrics have it
	tier       offload.Stats // what the metrics have
	tierBytes  [2]uint64     // saved and loaded bytes that the metrics have
	rate       float64       // prompt tokens per second, a moving average; 0: not measured
}

// connect starts the connectors that the configuration names.
func (r *rank) connect(dev ascendrt.Device) error {
	layout := r.exec.Layout(r.model.fingerprint())
	regions, err := r.exec.Regions()
	if err != nil {
		return err
	}
	parts := r.cfg.KVTransfer.parts()
	var workers []connector.Worker
	for i := range parts {
		w, err := r.startWorker(&parts[i], dev, layout)
		if err != nil {
			return err
		}
		workers = append(workers, w)
		r.closeAtEnd(w)
	}
	r.worker = workers[0]
	if r.cfg.KVTransfer.kind() == ConnectorMulti {
		if r.worker, err = multi.NewWorker(0, workers...); err != nil {
			return err
		}
		r.closeAtEnd(r.worker)
	}
	if err := r.worker.Register(layout, regions); err != nil {
		return fmt.Errorf("register kv memory: %w", err)
	}
	var sides []connector.Scheduler
	for i := range parts {
		s, err := r.startScheduler(&parts[i])
		if err != nil {
			return err
		}
		sides = append(sides, s)
	}
	r.conn = sides[0]
	if len(sides) > 1 || r.cfg.KVTransfer.kind() == ConnectorMulti {
		if r.conn, err = multi.NewScheduler(r.cfg.BlockSize, sides...); err != nil {
			return err
		}
	}
	r.events = r.worker.Events()
	if r.links.pdw != nil {
		r.links.layered, _ = r.worker.(connector.Layered)
		r.parse = r.parseParams
	}
	return nil
}

func (r *rank) closeAtEnd(w connector.Worker) {
	r.closers = append(r.closers, func() {
		if err := w.Close(); err != nil {
			r.log.Warn("connector did not close", "error", err)
		}
	})
}

// startWorker makes the worker's side of one connector.
func (r *rank) startWorker(t *KVTransfer, dev ascendrt.Device, layout connector.Layout) (connector.Worker, error) {
	if t.kind() == ConnectorPD {
		c, err := r.pdWorker(t, dev)
		if err != nil {
			return nil, err
		}
		r.links.pdw, err = pd.NewWorker(c)
		return r.links.pdw, err
	}
	slots, err := r.slots(layout)
	if err != nil {
		return nil, err
	}
	c := offload.WorkerConfig{Slots: slots, Ranks: r.cfg.DataParallel, Log: r.log}
	if x := t.Extra; x.FileDir != "" {
		c.Files = &offload.FileConfig{Dir: filepath.Join(x.FileDir, fmt.Sprintf("dp%d", r.index)), Bytes: x.FileBytes, FullEvery: x.FileFullEvery}
	}
	way, err := offload.ParseWay(t.Extra.DeviceCopies)
	if err != nil {
		return nil, err
	}
	mover, err := offload.NewDeviceMover(dev, r.exec.Buffers(), offload.DeviceOptions{Way: way, Busy: r.busy.Load})
	if err != nil {
		return nil, err
	}
	c.Mover = mover
	if r.links.offw, err = offload.NewWorker(c); err != nil {
		return nil, errors.Join(err, mover.Close())
	}
	return r.links.offw, nil
}

// slots is the size of the host tier in blocks.
func (r *rank) slots(layout connector.Layout) (int, error) {
	x := r.cfg.KVTransfer.part(ConnectorOffload).Extra
	return offload.Slots(layout, offload.Budget{BytesPerRank: x.HostBytesPerRank, Bytes: x.HostBytes, Ratio: x.HostRatio}, r.cfg.DataParallel)
}

func (r *rank) pdWorker(t *KVTransfer, dev ascendrt.Device) (pd.WorkerConfig, error) {
	port := 0
	if r.cfg.KVPort != 0 {
		port = r.cfg.KVPort + r.index
	}
	c := pd.WorkerConfig{
		EngineID: r.id, Listen: net.JoinHostPort(r.cfg.KVTransfer.IP, strconv.Itoa(port)), Lease: seconds(t.Extra.LeaseSeconds), Log: r.log,
	}
	if t.Extra.Peers != nil {
		peers, err := pd.ParsePeers(t.Extra.Peers)
		if err != nil {
			return c, err
		}
		c.Allow = peers.Allow
	}
	if f := t.Extra.TLS; f != nil {
		var err error
		if c.ServerTLS, c.ClientTLS, err = tcp.MutualTLS(f.Cert, f.Key, f.CA); err != nil {
			return c, err
		}
	}
	c.Transport = func(n transport.Notified) (transport.Transport, error) {
		made, err := r.transport(t, dev, &c, n)
		if err != nil || t.Extra.Faults == "" {
			return made, err
		}
		script, err := faulty.Parse(t.Extra.Faults, t.Extra.FaultSeed+uint64(r.index))
		if err != nil {
			return nil, errors.Join(err, made.Close())
		}
		return faulty.Wrap(made, script), nil
	}
	return c, nil
}

// transport makes the transport that the configuration names.
func (r *rank) transport(t *KVTransfer, dev ascendrt.Device, c *pd.WorkerConfig, n transport.Notified) (transport.Transport, error) {
	cfg := tcp.Config{
		Listen: net.JoinHostPort(r.cfg.KVTransfer.IP, "0"), ServerTLS: c.ServerTLS, ClientTLS: c.ClientTLS, Notified: n, Log: r.log,
	}
	if t.Extra.DeviceIPC != DeviceIPCOff {
		if near := r.near(dev); near != nil {
			cfg.Near = near
		}
	}
	made, err := carrier(t.Extra.Transport, cfg)
	if err != nil && cfg.Near != nil {
		err = errors.Join(err, cfg.Near.Close())
	}
	return made, err
}

// near lets peers on this host read the device's memory, where that can be; nil
// if not.
func (r *rank) near(dev ascendrt.Device) *ipc.Near {
	if _, mapped := dev.(ascendrt.Mapper); mapped {
		return nil // the CPU copies it as it is
	}
	n, err := ipc.New(dev)
	if err != nil {
		r.log.Warn("kv moves between engines through the host", "device", r.cfg.Device, "reason", err)
		return nil
	}
	return n
}

// carrier makes a transport by its name.
func carrier(name string, cfg tcp.Config) (transport.Transport, error) {
	switch name {
	case "", TransportTCP:
		made, err := tcp.New(cfg)
		if err != nil {
			return nil, err
		}
		return made, nil
	case TransportUCX:
		return ucx.New(cfg)
	case TransportMooncake:
		return mooncake.New(cfg)
	default:
		return nil, &transport.UnavailableError{Transport: name, Reason: "there is no such transport; use one of " + strings.Join(transports, ", ")}
	}
}

// startScheduler makes the scheduler's side of one connector, whose worker is
// registered.
func (r *rank) startScheduler(t *KVTransfer) (connector.Scheduler, error) {
	var err error
	if t.kind() == ConnectorPD {
		role, err := pd.ParseRole(string(t.Role))
		if err != nil {
			return nil, err
		}
		x := t.Extra
		c := pd.SchedulerConfig{
			Role: role, Self: r.links.pdw.Endpoint(), BlockSize: r.cfg.BlockSize, Lease: seconds(x.LeaseSeconds), Load: seconds(x.LoadSeconds),
			Reverse: pd.ReverseConfig{Enable: x.Bidirectional, Threshold: x.MinReverse, Blocks: x.ReverseBlocks},
		}
		if c.Reverse.Blocks == 0 {
			c.Reverse.Blocks = max(1, r.cfg.KVBlocks/2)
		}
		rand.Read(c.Key[:]) // never fails
		r.links.pd, err = pd.NewScheduler(c)
		return r.links.pd, err
	}
	slots, err := r.slots(r.exec.Layout(r.model.fingerprint()))
	if err != nil {
		return nil, err
	}
	c := offload.Config{BlockSize: r.cfg.BlockSize, Slots: slots, Files: r.links.offw.Files(), Events: r.cfg.cacheEvents()}
	if t.Extra.ShareTurns {
		c.Sharing = offload.Turns
	}
	if c.Policy, err = offload.ParsePolicy(t.Extra.Eviction); err != nil {
		return nil, err
	}
	r.links.offload, err = offload.NewScheduler(c)
	return r.links.offload, err
}

// transferParams are kv_transfer_params as a connector reads them.
type transferParams struct {
	value   any           // for the connector
	remote  bool          // a peer has computed the prompt
	forPeer bool          // a peer will take what is computed here
	eta     time.Duration // what the other route would take; 0: not told
}

// parseParams reads kv_transfer_params for the pd connector. A peer that this
// engine does not deal with is an error.
func (r *rank) parseParams(raw []byte) (transferParams, error) {
	p, err := pd.ParseParams(raw)
	if p == nil || err != nil {
		return transferParams{}, err
	}
	if err := r.links.pdw.Allowed(p); err != nil {
		return transferParams{}, err
	}
	out := transferParams{value: p, remote: p.DoRemotePrefill, forPeer: p.DoRemoteDecode}
	if ms := p.ETAMillis; ms != nil && *ms > 0 && *ms < float64(time.Hour/time.Millisecond) {
		out.eta = time.Duration(*ms * float64(time.Millisecond))
	}
	return out, nil
}

// params reads kv_transfer_params with the rank's connector; without one they
// have no meaning.
func (r *rank) params(raw []byte) (transferParams, error) {
	if r.parse == nil || len(raw) == 0 {
		return transferParams{}, nil
	}
	return r.parse(raw)
}

// Transfers reports whether kv_transfer_params have a meaning here.
func (e *Engine) Transfers() bool { return e.ranks[0].parse != nil }

// drop releases the KV that a peer keeps for a request that does not run.
func (r *rank) drop(p transferParams) {
	if v, ok := p.value.(*pd.Params); ok && r.links.pdw != nil {
		r.links.pdw.Discard(v)
	}
}
