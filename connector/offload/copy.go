package offload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// copier takes tasks from the queue until the worker closes.
func (w *Worker) copier(thread int) {
	for {
		w.mu.Lock()
		for len(w.queue) == 0 && !w.closed {
			w.cond.Wait()
		}
		if w.closed {
			w.mu.Unlock()
			return
		}
		t := w.queue[0]
		w.queue = w.queue[1:]
		w.mu.Unlock()
		if t.what.kind == jobLoad {
			w.load(t, thread)
		} else {
			w.save(t)
		}
	}
}

// context bounds a task by its deadline and the worker's life.
func (w *Worker) context(t *task) (context.Context, context.CancelFunc) {
	if t.deadline.IsZero() {
		return context.WithCancel(w.ctx)
	}
	return context.WithDeadlineCause(w.ctx, t.deadline, fmt.Errorf("not finished within %v", t.op.Timeout))
}

// batch collects copies, by group.
type batch []Copies

func (w *Worker) newBatch(urgent bool) batch {
	b := make(batch, len(w.parts))
	for g := range b {
		b[g] = Copies{Parts: w.parts[g], SlotBytes: w.size, Urgent: urgent}
	}
	return b
}

// add notes the copy of one block, between it and a slot.
func (b batch) add(group int, block kvcache.BlockID, slot int) {
	c := &b[group]
	c.Blocks, c.Slots = append(c.Blocks, int32(block)), append(c.Slots, int32(slot))
}

// run copies what was noted, and empties the batch.
func (b batch) run(ctx context.Context, copies func(context.Context, Copies) error) error {
	for g := range b {
		c := &b[g]
		if len(c.Blocks) > 0 {
			if err := copies(ctx, *c); err != nil {
				return err
			}
		}
		c.Blocks, c.Slots = c.Blocks[:0], c.Slots[:0]
	}
	return nil
}

func (w *Worker) groupBytes(group int) int64 { return int64(w.layout.Groups[group].BlockBytes) }

// save copies a task's blocks to their slots and reports. A finished turn's
// blocks are given back, and filed if there is a file tier.
func (w *Worker) save(t *task) {
	begin := time.Now()
	ctx, cancel := w.context(t)
	defer cancel()
	b := w.newBatch(t.what.kind == jobSave) // of a preemption: within Submit
	var bytes int64
	for _, it := range t.what.items {
		b.add(it.group, it.block, int(it.slot))
		bytes += w.groupBytes(it.group)
	}
	err := b.run(ctx, w.mover.Save)
	rep := Report{Job: t.what.job, Took: time.Since(begin)}
	if err == nil {
		rep.Blocks, rep.Bytes = len(t.what.items), bytes
		w.savedBlocks.Add(uint64(rep.Blocks))
		w.savedBytes.Add(uint64(bytes))
	} else {
		w.cfg.Log.Warn("offload: save failed", "request", t.op.Request.String(), "error", err)
	}
	turn := t.what.kind == jobTurn
	if turn && err == nil && w.files != nil {
		w.mu.Lock()
		if rep.willFile = w.filing < maxFiling; rep.willFile {
			w.filing++
		} else {
			w.fileSkipped.Add(1)
		}
		w.mu.Unlock()
	}
	w.emit(connector.Event{Kind: connector.Saved, Request: t.op.Request, Err: err, Payload: rep})
	if turn {
		w.emit(connector.Event{Kind: connector.Sent, Request: t.op.Request})
	}
	if rep.willFile { // after the report of the copy
		w.mu.Lock()
		w.writes = append(w.writes, t)
		w.cond.Broadcast()
		w.mu.Unlock()
	}
}

// outcome is how a load went.
type outcome struct {
	copyErr error // nothing may be used
	missing []kvcache.BlockID
	missErr error // why the first one is missing
	gone    []Key // no longer in files
	took    time.Duration
}

// load copies a task's blocks from their slots, or from files, and reports.
func (w *Worker) load(t *task, thread int) {
	begin := time.Now()
	ctx, cancel := w.context(t)
	defer cancel()
	var o outcome
	miss := func(b kvcache.BlockID, err error) {
		o.missing = append(o.missing, b)
		if o.missErr == nil {
			o.missErr = err
		}
	}
	b := w.newBatch(false)
	stage, staged := w.cfg.Slots+thread*staging, 0
	flush := func() {
		if o.copyErr == nil {
			o.copyErr = b.run(ctx, w.mover.Load)
		}
		staged = 0
	}
	for _, it := range t.what.items {
		switch {
		case it.slot != noSlot:
			b.add(it.group, it.block, int(it.slot))
		case it.filed && w.files != nil:
			if staged == staging {
				flush()
			}
			at := int64(stage+staged) * w.size
			w.fileReads.Add(1)
			lost, err := w.files.get(it.key, w.host[at:at+w.groupBytes(it.group)])
			if err != nil {
				w.fileDamaged.Add(1)
				o.gone = append(o.gone, lost...)
				miss(it.block, err)
				continue
			}
			b.add(it.group, it.block, stage+staged)
			staged++
		default:
			miss(it.block, errGone)
		}
	}
	flush()
	o.took = time.Since(begin)
	w.loaded(t, o)
}

// loaded reports the end of a load.
func (w *Worker) loaded(t *task, o outcome) {
	rep := Report{Job: t.what.job, Tokens: t.op.Tokens.Len(), Took: o.took, fileGone: o.gone}
	err := o.missErr
	if o.copyErr != nil {
		err, o.missing = o.copyErr, nil
	}
	if err != nil {
		w.cfg.Log.Warn("offload: load failed", "request", t.op.Request.String(), "missing", len(o.missing), "error", err)
		w.emit(connector.Event{Kind: connector.Failed, Request: t.op.Request, Blocks: o.missing, Err: err})
	}
	if o.copyErr == nil {
		missing := make(map[kvcache.BlockID]bool, len(o.missing))
		for _, b := range o.missing {
			missing[b] = true
		}
		for _, it := range t.what.items {
			if !missing[it.block] {
				rep.Blocks++
				rep.Bytes += w.groupBytes(it.group)
			}
		}
		w.loadedBlocks.Add(uint64(rep.Blocks))
		w.loadedBytes.Add(uint64(rep.Bytes))
	}
	w.emit(connector.Event{Kind: connector.Received, Request: t.op.Request, Err: err, Payload: rep})
}

var errGone = errors.New("offload: the block is no longer in the tier")

// writer files saved turns, one after the other, until the worker closes.
func (w *Worker) writer() {
	for {
		w.mu.Lock()
		for len(w.writes) == 0 && !w.closed {
			w.cond.Wait()
		}
		if w.closed {
			w.mu.Unlock()
			return
		}
		t := w.writes[0]
		w.writes = w.writes[1:]
		w.filing--
		w.mu.Unlock()
		w.file(t)
	}
}

// file writes a turn's blocks in runs. The scheduler's side keeps the slots
// until the report.
func (w *Worker) file(t *task) {
	rep := Report{Job: t.what.job, phase: filed}
	var keys []Key
	var data [][]byte
	flush := func() {
		if len(keys) == 0 || w.ctx.Err() != nil {
			return
		}
		added, gone, err := w.files.put(keys, data)
		rep.fileAdded, rep.fileGone = append(rep.fileAdded, added...), append(rep.fileGone, gone...)
		w.fileWrites.Add(1)
		if err != nil {
			w.fileErrors.Add(1)
			w.cfg.Log.Warn("offload: run not filed", "blocks", len(keys), "error", err)
		}
		keys, data = nil, nil
	}
	for _, it := range t.what.items {
		if !it.filed {
			continue
		}
		at := int64(it.slot) * w.size
		keys, data = append(keys, it.key), append(data, w.host[at:at+w.groupBytes(it.group)])
		if len(keys) == w.files.cfg.Run {
			flush()
		}
	}
	flush()
	w.emit(connector.Event{Kind: connector.Saved, Request: t.op.Request, Payload: rep})
}
