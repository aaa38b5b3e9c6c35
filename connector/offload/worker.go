package offload

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/connector"
)

// WorkerConfig configures the worker's side.
type WorkerConfig struct {
	Rank    int         // of this worker in its engine, from 0
	Ranks   int         // of this process, each with a tier of this size; default 1
	Slots   int         // host blocks, the same number as Config.Slots
	Threads int         // copies at a time, apart from those of preemptions; default 2
	Mover   Mover       // default: by the CPU
	Files   *FileConfig // nil: no file tier
	Log     *slog.Logger
}

// WorkerStats are counters since the start, and gauges.
type WorkerStats struct {
	SavedBlocks, SavedBytes   uint64
	LoadedBlocks, LoadedBytes uint64
	FileWrites, FileErrors    uint64 // runs
	FileReads, FileDamaged    uint64 // blocks
	FileSkipped               uint64 // turns that were not filed because the writer was behind
	Files                     int
	FileBytes                 int64
	Queued                    int
}

// maxFiling is how many turns may wait for the writer; their slots are in use
// meanwhile.
const maxFiling = 16

// staging is the number of slots a copier uses to read files.
const staging = 8

// Worker copies for one engine rank.
type Worker struct {
	cfg    WorkerConfig
	layout connector.Layout
	size   int64    // of a slot
	parts  [][]Part // by group
	mover  Mover
	host   []byte
	files  *fileStore

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // copiers, writer
	inline sync.WaitGroup // saves within Submit
	out    sync.WaitGroup // emitter
	once   sync.Once
	events chan connector.Event

	mu         sync.Mutex
	cond       *sync.Cond // queue, outbox or state changed
	registered bool
	closed     bool
	drained    bool // the copiers have ended
	queue      []*task
	filing     int // turns that wait for the writer, or are about to
	writes     []*task
	outbox     []connector.Event

	savedBlocks, savedBytes, loadedBlocks, loadedBytes          atomic.Uint64
	fileWrites, fileErrors, fileReads, fileDamaged, fileSkipped atomic.Uint64
}

var _ connector.Worker = (*Worker)(nil)

// task is an op that was taken up.
type task struct {
	op       connector.Op
	what     *work
	deadline time.Time // zero: none
}

// NewWorker makes the worker; Register allocates.
func NewWorker(cfg WorkerConfig) (*Worker, error) {
	if cfg.Slots < 1 {
		return nil, fmt.Errorf("offload: %d host blocks, want at least 1", cfg.Slots)
	}
	if cfg.Threads <= 0 {
		cfg.Threads = 2
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	w := &Worker{cfg: cfg, events: make(chan connector.Event)}
	w.cond = sync.NewCond(&w.mu)
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w, nil
}

// Register allocates the tier's memory, opens the files and starts the copiers.
func (w *Worker) Register(layout connector.Layout, regions []connector.Region) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.registered || w.closed {
		return errors.New("offload: registered twice or closed")
	}
	w.layout, w.size = layout, slotBytes(layout)
	w.parts = make([][]Part, len(layout.Groups))
	var used = make([]int64, len(layout.Groups))
	for i, r := range regions {
		if r.Group < 0 || r.Group >= len(layout.Groups) || r.BlockBytes <= 0 {
			return fmt.Errorf("offload: region %q of layer %d: group %d of %d, %d bytes a block", r.Name, r.Layer, r.Group, len(layout.Groups), r.BlockBytes)
		}
		w.parts[r.Group] = append(w.parts[r.Group], Part{i, r.BlockBytes, used[r.Group]})
		used[r.Group] += int64(r.BlockBytes)
	}
	for g, n := range used {
		if n != int64(layout.Groups[g].BlockBytes) {
			return fmt.Errorf("offload: regions of KV group %d have %d bytes a block, the layout says %d", g, n, layout.Groups[g].BlockBytes)
		}
	}
	bytes := w.size * int64(w.cfg.Slots+w.cfg.Threads*staging)
	if free, ok := availableMemory(); ok && bytes > free/int64(max(1, w.cfg.Ranks)) {
		return &MemoryError{Bytes: bytes, Ranks: max(1, w.cfg.Ranks), Free: free}
	}
	if w.cfg.Files != nil {
		f, err := openFiles(*w.cfg.Files, fingerprint(layout, regions))
		if err != nil {
			return err
		}
		w.files = f
	}
	if w.mover = w.cfg.Mover; w.mover == nil {
		w.mover = &memoryMover{regions: regions}
	}
	host, err := w.mover.Alloc(bytes)
	if err != nil {
		return fmt.Errorf("offload: host memory: %w", err)
	}
	w.host, w.registered = host, true
	for i := range w.cfg.Threads {
		w.wg.Go(func() { w.copier(i) })
	}
	if w.files != nil {
		w.wg.Go(w.writer)
	}
	w.out.Go(w.emitter)
	return nil
}

// MemoryError reports a host tier that is larger than the memory.
type MemoryError struct {
	Bytes int64 // of one rank's tier
	Ranks int
	Free  int64 // bytes
}

func (e *MemoryError) Error() string {
	return fmt.Sprintf("offload: a host tier of %d bytes on each of %d ranks does not fit into the %d bytes of memory that are free; lower cpu_bytes_to_use", e.Bytes, e.Ranks, e.Free)
}

// fingerprint names what must be equal for the bytes of a file to be usable.
func fingerprint(l connector.Layout, regions []connector.Region) [32]byte {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %d\n", l.Model, l.DType, l.BlockSize)
	for _, g := range l.Groups {
		fmt.Fprintf(h, "%q %d %d\n", g.Kind, g.Layers, g.BlockBytes)
	}
	for _, r := range regions {
		fmt.Fprintf(h, "%d %d %q %d\n", r.Group, r.Layer, r.Name, r.BlockBytes)
	}
	return [32]byte(h.Sum(nil))
}

// availableMemory is what the kernel would give, in bytes.
func availableMemory() (int64, bool) {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	for line := range bytes.Lines(raw) {
		if rest, ok := strings.CutPrefix(string(line), "MemAvailable:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n << 10, err == nil
		}
	}
	return 0, false
}

// Files are the blocks that the file tier holds, for Config.Files. Empty
// without one. Call it after Register.
func (w *Worker) Files() []Key {
	if w.files == nil {
		return nil
	}
	return w.files.keys()
}

// Stats returns counters and gauges.
func (w *Worker) Stats() WorkerStats {
	s := WorkerStats{
		SavedBlocks: w.savedBlocks.Load(), SavedBytes: w.savedBytes.Load(), LoadedBlocks: w.loadedBlocks.Load(), LoadedBytes: w.loadedBytes.Load(),
		FileWrites: w.fileWrites.Load(), FileErrors: w.fileErrors.Load(), FileReads: w.fileReads.Load(), FileDamaged: w.fileDamaged.Load(),
		FileSkipped: w.fileSkipped.Load(),
	}
	if w.files != nil {
		s.Files, s.FileBytes = w.files.size()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Queued = len(w.queue)
	return s
}

// Events delivers what happened.
func (w *Worker) Events() <-chan connector.Event { return w.events }

// emit queues an event; it does not wait.
func (w *Worker) emit(ev connector.Event) {
	ev.Worker = w.cfg.Rank
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outbox = append(w.outbox, ev)
	w.cond.Broadcast()
}

// emitter hands events over in order until the worker closes.
func (w *Worker) emitter() {
	defer close(w.events)
	for {
		w.mu.Lock()
		for len(w.outbox) == 0 && !w.drained {
			w.cond.Wait()
		}
		if len(w.outbox) == 0 {
			w.mu.Unlock()
			return
		}
		batch := w.outbox
		w.outbox = nil
		w.mu.Unlock()
		for _, ev := range batch {
			select {
			case w.events <- ev:
			case <-w.ctx.Done():
				select { // a reader that is still there gets the last events
				case w.events <- ev:
				default:
				}
			}
		}
	}
}

// Submit takes up work. The saves of preemptions are complete when it returns.
func (w *Worker) Submit(ops ...connector.Op) error {
	w.mu.Lock()
	if !w.registered || w.closed {
		w.mu.Unlock()
		return errors.New("offload: worker is not registered or closed")
	}
	w.inline.Add(1)
	defer w.inline.Done()
	w.mu.Unlock()
	now := time.Now()
	var later []*task
	for _, op := range ops {
		what, ok := op.Payload.(*work)
		if !ok {
			continue
		}
		t := &task{op: op, what: what}
		if op.Timeout > 0 {
			t.deadline = now.Add(op.Timeout)
		}
		if what.kind == jobSave {
			w.save(t)
			continue
		}
		later = append(later, t)
	}
	// Only now: a load of this call may write to a block that was saved above.
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, later...)
	w.cond.Broadcast()
	return nil
}

// Close lets copies in progress end, drops those that wait, and frees the
// memory.
func (w *Worker) Close() error {
	var err error
	w.once.Do(func() {
		w.mu.Lock()
		w.closed = true
		w.queue = nil
		registered := w.registered
		w.cond.Broadcast()
		w.mu.Unlock()
		w.cancel()
		w.wg.Wait()
		w.inline.Wait()
		w.mu.Lock()
		w.drained = true
		w.cond.Broadcast()
		w.mu.Unlock()
		w.out.Wait()
		if !registered {
			close(w.events)
			return
		}
		err = w.mover.Close()
	})
	return err
}
