package offload

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// FileConfig configures the file tier.
type FileConfig struct {
	Dir   string // made if it does not exist; other files in it are left alone
	Bytes int64  // greatest size of all files; required
	Run   int    // greatest number of blocks in a file; default 64, at most 4096

	// FullEvery makes every n-th file fail half written, as on a full disk. For
	// tests; 0: none.
	FullEvery int
}

// A file holds a run of blocks, little endian:
//
//	magic         8 bytes
//	fingerprint  32 bytes  of model, dtype, layout and block size
//	count         4 bytes
//	per block: group 1, namespace 32, hash 32, length 4, CRC32C of the bytes 4
//	CRC32C of all before, 4 bytes
//	the blocks' bytes
const (
	fileSuffix  = ".sluicekv"
	tempPrefix  = ".sluicekv-"
	fileHead    = 8 + 32 + 4
	fileEntry   = 1 + 32 + 32 + 4 + 4
	fileTail    = 4
	maxRun      = 4096
	maxFileData = 1 << 30 // bytes of one block
)

var fileMagic = [8]byte{'S', 'L', 'C', 'K', 'V', 'F', '0', '1'}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errShort = errors.New("short copy")

// fileBlock is one block of a file.
type fileBlock struct {
	key    Key
	length uint32
	crc    uint32
	offset int64
}

// storedFile is a file of the tier.
type storedFile struct {
	name   string
	size   int64
	blocks []fileBlock
	use    *list.Element
}

// fileStore is the file tier of one worker. Its methods may be called from any
// goroutine.
type fileStore struct {
	cfg         FileConfig
	fingerprint [32]byte

	mu    sync.Mutex
	files map[string]*storedFile
	where map[Key]location
	order list.List // used longest ago in front
	used  int64
	count int // files begun
}

type location struct {
	file *storedFile
	n    int
}

// openFiles reads what is there, and deletes what is torn or foreign.
func openFiles(cfg FileConfig, fingerprint [32]byte) (*fileStore, error) {
	if cfg.Dir == "" || cfg.Bytes <= 0 || cfg.Run < 0 || cfg.Run > maxRun || cfg.FullEvery < 0 {
		return nil, fmt.Errorf("offload: file tier needs a folder, a size above 0 and runs of at most %d blocks, got %+v", maxRun, cfg)
	}
	if cfg.Run == 0 {
		cfg.Run = 64
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("offload: file tier: %w; choose a folder that this user may write to", err)
	}
	probe, err := os.CreateTemp(cfg.Dir, tempPrefix)
	if err != nil {
		return nil, fmt.Errorf("offload: file tier: %w; choose a folder that this user may write to", err)
	}
	probe.Close()
	os.Remove(probe.Name())
	f := &fileStore{cfg: cfg, fingerprint: fingerprint, files: map[string]*storedFile{}, where: map[Key]location{}}
	entries, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("offload: file tier: %w", err)
	}
	type old struct {
		f  *storedFile
		at int64
	}
	var found []old
	for _, e := range entries {
		path := filepath.Join(cfg.Dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), tempPrefix): // a writer was killed
			os.Remove(path)
		case strings.HasSuffix(e.Name(), fileSuffix) && e.Type().IsRegular():
			info, err := e.Info()
			if err != nil {
				continue
			}
			sf, err := f.inspect(path)
			if err != nil {
				os.Remove(path)
				continue
			}
			found = append(found, old{sf, info.ModTime().UnixNano()})
		}
	}
	slices.SortFunc(found, func(a, b old) int { // a restart keeps the order of use as far as the times tell
		return cmpOr(a.at, b.at, a.f.name, b.f.name)
	})
	for _, o := range found {
		f.add(o.f)
	}
	f.shrink(0)
	return f, nil
}

func cmpOr(a, b int64, x, y string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return strings.Compare(x, y)
}

// inspect reads a file's head and checks it and the length.
func (f *fileStore) inspect(path string) (*storedFile, error) {
	r, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	info, err := r.Stat()
	if err != nil {
		return nil, err
	}
	blocks, size, err := parseHead(r, f.fingerprint)
	if err != nil {
		return nil, err
	}
	if size != info.Size() {
		return nil, fmt.Errorf("file of %d bytes, want %d", info.Size(), size)
	}
	return &storedFile{name: filepath.Base(path), size: size, blocks: blocks}, nil
}

// parseHead decodes and checks everything before the blocks' bytes, and says
// how long the file must be.
func parseHead(r io.Reader, fingerprint [32]byte) ([]fileBlock, int64, error) {
	head := make([]byte, fileHead, fileHead+64*fileEntry+fileTail)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, 0, err
	}
	if [8]byte(head[:8]) != fileMagic {
		return nil, 0, errors.New("not a file of this tier")
	}
	if [32]byte(head[8:40]) != fingerprint {
		return nil, 0, errors.New("file of another model or layout")
	}
	n := binary.LittleEndian.Uint32(head[40:])
	if n == 0 || n > maxRun {
		return nil, 0, fmt.Errorf("%d blocks in a file", n)
	}
	rest := int(n)*fileEntry + fileTail
	head = append(head, make([]byte, rest)...)
	if _, err := io.ReadFull(r, head[fileHead:]); err != nil {
		return nil, 0, err
	}
	end := len(head) - fileTail
	if crc32.Checksum(head[:end], castagnoli) != binary.LittleEndian.Uint32(head[end:]) {
		return nil, 0, errors.New("head is damaged")
	}
	offset := int64(len(head))
	blocks := make([]fileBlock, n)
	for i := range blocks {
		e := head[fileHead+i*fileEntry:]
		b := fileBlock{key: Key{Group: e[0], Namespace: [32]byte(e[1:33]), Hash: [32]byte(e[33:65])}, offset: offset}
		b.length, b.crc = binary.LittleEndian.Uint32(e[65:]), binary.LittleEndian.Uint32(e[69:])
		if b.length > maxFileData {
			return nil, 0, fmt.Errorf("block of %d bytes", b.length)
		}
		offset += int64(b.length)
		blocks[i] = b
	}
	return blocks, offset, nil
}

// appendHead encodes what parseHead reads.
func appendHead(b []byte, fingerprint [32]byte, blocks []fileBlock) []byte {
	b = append(b, fileMagic[:]...)
	b = append(b, fingerprint[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(blocks)))
	for _, x := range blocks {
		b = append(b, x.key.Group)
		b = append(b, x.key.Namespace[:]...)
		b = append(b, x.key.Hash[:]...)
		b = binary.LittleEndian.AppendUint32(b, x.length)
		b = binary.LittleEndian.AppendUint32(b, x.crc)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// add takes a file into the account. The lock is held, or nobody else is
// there.
func (f *fileStore) add(s *storedFile) {
	f.files[s.name] = s
	f.used += s.size
	s.use = f.order.PushBack(s)
	for i, b := range s.blocks {
		f.where[b.key] = location{s, i}
	}
}

// remove takes a file out of the account and deletes it, and returns the keys
// that went with it. The lock is held.
func (f *fileStore) remove(s *storedFile) []Key {
	if f.files[s.name] != s {
		return nil
	}
	delete(f.files, s.name)
	f.order.Remove(s.use)
	f.used -= s.size
	os.Remove(filepath.Join(f.cfg.Dir, s.name))
	var gone []Key
	for i, b := range s.blocks {
		if f.where[b.key] == (location{s, i}) {
			delete(f.where, b.key)
			gone = append(gone, b.key)
		}
	}
	return gone
}

// shrink makes room for more bytes.
func (f *fileStore) shrink(more int64) (gone []Key) {
	for f.used+more > f.cfg.Bytes && f.order.Len() > 0 {
		gone = append(gone, f.remove(f.order.Front().Value.(*storedFile))...)
	}
	return gone
}

// keys are all blocks that the tier holds.
func (f *fileStore) keys() []Key {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]Key, 0, len(f.where))
	for e := f.order.Front(); e != nil; e = e.Next() {
		for _, b := range e.Value.(*storedFile).blocks {
			out = append(out, b.key)
		}
	}
	return out
}

// put writes a run of blocks. added are the keys that it holds now, gone those
// that had to go for them.
func (f *fileStore) put(keys []Key, data [][]byte) (added, gone []Key, err error) {
	blocks := make([]fileBlock, len(keys))
	var body int64
	for i, d := range data {
		blocks[i] = fileBlock{key: keys[i], length: uint32(len(d)), crc: crc32.Checksum(d, castagnoli)}
		body += int64(len(d))
	}
	head := appendHead(nil, f.fingerprint, blocks)
	size := int64(len(head)) + body
	if size > f.cfg.Bytes {
		return nil, nil, fmt.Errorf("run of %d bytes does not fit into %d", size, f.cfg.Bytes)
	}
	offset := int64(len(head))
	for i := range blocks {
		blocks[i].offset = offset
		offset += int64(blocks[i].length)
	}
	sum := sha256.Sum256(head)
	s := &storedFile{name: fmt.Sprintf("%x%s", sum[:20], fileSuffix), size: size, blocks: blocks}
	f.mu.Lock()
	gone = f.shrink(size)
	f.mu.Unlock()
	if err := f.write(s.name, head, data); err != nil {
		return nil, gone, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.files[s.name]; old != nil { // the same run: its bytes were replaced by the same
		f.order.Remove(old.use)
		f.used -= old.size
	}
	f.add(s)
	return keys, gone, nil
}

// write makes the file whole or not at all.
func (f *fileStore) write(name string, head []byte, data [][]byte) (err error) {
	w, err := os.CreateTemp(f.cfg.Dir, tempPrefix)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			w.Close()
			os.Remove(w.Name())
		}
	}()
	full := f.full()
	for i, b := range append([][]byte{head}, data...) {
		if full && i > len(data)/2 {
			return &os.PathError{Op: "write", Path: w.Name(), Err: syscall.ENOSPC}
		}
		if _, err = w.Write(b); err != nil {
			return err
		}
	}
	if err = w.Close(); err != nil {
		return err
	}
	return os.Rename(w.Name(), filepath.Join(f.cfg.Dir, name))
}

// full counts a file and says whether it meets the configured fault.
func (f *fileStore) full() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	return f.cfg.FullEvery > 0 && f.count%f.cfg.FullEvery == 0
}

// get reads one block into dst, which has its length, and checks it. A damaged
// or missing file is taken out; gone are the keys that went with it.
func (f *fileStore) get(k Key, dst []byte) (gone []Key, err error) {
	f.mu.Lock()
	at, ok := f.where[k]
	if !ok {
		f.mu.Unlock()
		return []Key{k}, fmt.Errorf("block %v is not in a file", k)
	}
	b := at.file.blocks[at.n]
	f.order.MoveToBack(at.file.use)
	f.mu.Unlock()
	if err = f.readBlock(at.file.name, b, dst); err == nil {
		return nil, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.remove(at.file), fmt.Errorf("file %s: %w", at.file.name, err)
}

func (f *fileStore) readBlock(name string, b fileBlock, dst []byte) error {
	if int(b.length) != len(dst) {
		return fmt.Errorf("block of %d bytes, want %d", b.length, len(dst))
	}
	r, err := os.Open(filepath.Join(f.cfg.Dir, name))
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := r.ReadAt(dst, b.offset); err != nil {
		return err
	}
	if crc32.Checksum(dst, castagnoli) != b.crc {
		return errors.New("block is damaged")
	}
	return nil
}

// size is the number of files and their bytes.
func (f *fileStore) size() (files int, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.files), f.used
}
