package abi

import (
	"bufio"
	"errors"
	"fmt"
	"os"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// core is a scheduler with what belongs to it.
type core struct {
	s      *scheduler.Scheduler
	cache  *kvcache.Cache
	blocks int
	conn   *offers     // nil without a connector
	graphs *dispatcher // nil without graphs
	rec    *recording  // nil without a recording

	planned uint64 // number of the last plan

	out exported // what C reads
}

// dispatcher chooses graphs.
type dispatcher struct {
	d *graphs.Dispatcher
}

func newDispatcher(c graphsConfig) (*dispatcher, error) {
	d, err := graphs.New(c.Config)
	if err != nil {
		return nil, err
	}
	if c.Captured == capturedAll {
		d.SetCaptureState(graphs.AllCaptured)
	}
	return &dispatcher{d}, nil
}

// recording is a file that a scheduler's operations are written to.
type recording struct {
	file *os.File
	buf  *bufio.Writer
	rec  *scheduler.Recorder
}

func newRecording(path string) (*recording, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: Record.Path: %w", err)
	}
	b := bufio.NewWriterSize(f, 1<<16)
	return &recording{f, b, scheduler.NewRecorder(b)}, nil
}

func (r *recording) flush() error { return errors.Join(r.rec.Err(), r.buf.Flush()) }

func (r *recording) close() error { return errors.Join(r.flush(), r.file.Close()) }

// newCore makes a scheduler whose plans lie in memory of m.
func newCore(c config, m scheduler.Allocator) (*core, error) {
	cache, err := kvcache.New(c.Cache)
	if err != nil {
		return nil, err
	}
	k := &core{cache: cache, blocks: c.Cache.Blocks}
	opts := []scheduler.Option{scheduler.WithAllocator(m)}
	if c.Graphs != nil {
		if k.graphs, err = newDispatcher(*c.Graphs); err != nil {
			return nil, err
		}
		opts = append(opts, scheduler.WithGraphs(k.graphs.d))
	}
	if c.Connector != nil {
		k.conn = newOffers(*c.Connector, cache.BlockSize(), max(c.Scheduler.Workers, 1))
		opts = append(opts, scheduler.WithConnector(k.conn))
	}
	if err := c.Scheduler.Validate(); err != nil {
		return nil, err
	}
	if c.Record != nil {
		if k.rec, err = newRecording(c.Record.Path); err != nil {
			return nil, err
		}
		opts = append(opts, scheduler.WithRecorder(k.rec.rec))
	}
	if k.s, err = scheduler.New(c.Scheduler, cache, opts...); err != nil {
		if k.rec != nil {
			err = errors.Join(err, k.rec.close())
		}
		return nil, err
	}
	return k, nil
}
