package offload

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
)

func withFiles(dir string, cap int64, run int) func(*Config, *WorkerConfig) {
	return func(c *Config, w *WorkerConfig) {
		c.Sharing, w.Files = Turns, &FileConfig{Dir: dir, Bytes: cap, Run: run}
	}
}

// turn saves a finished turn of n full blocks and waits until it is filed.
func (e *engine) turn(slot uint32, from, n int) *connector.Request {
	e.t.Helper()
	r := request(slot, tokens(from, n*bs+1), n*bs+1)
	tab := table(1, n+1)
	for i := range n {
		e.compute(r, i, tab[0][i])
	}
	require.True(e.t, e.s.Finished(r, tab, connector.End{Reason: connector.EndStop, Computed: n * bs}).Delay)
	e.flush()
	require.Equal(e.t, connector.Saved, e.next().Kind)
	require.Equal(e.t, connector.Sent, e.next().Kind)
	require.Equal(e.t, connector.Saved, e.next().Kind, "filed")
	return r
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestFilesOutliveTheEngine(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tier")
	e := newEngine(t, 8, withFiles(dir, 1<<20, 2))
	r := e.turn(1, 0, 5)
	require.Len(t, names(t, dir), 3, "runs of 2, 2 and 1")
	require.EqualValues(t, 3, e.w.Stats().FileWrites)
	require.NoError(t, e.w.Close())

	again := newEngine(t, 8, withFiles(dir, 1<<20, 2))
	require.Equal(t, 5, again.s.Stats().FileBlocks)
	next := request(7, append(tokens(0, 20), 99), 21)
	require.Equal(t, 20, again.s.Lookup(next, 0).Tokens)
	back := table(10, 6)
	again.s.Allocated(next, back, 0, 20)
	again.flush()
	ev := again.next()
	require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
	require.Equal(t, 5, ev.Payload.(Report).Blocks)
	for i := range 5 {
		again.has(r, i, back[0][i])
	}
	require.EqualValues(t, 5, again.w.Stats().FileReads)
}

func TestHostEvictionFallsBackToFiles(t *testing.T) {
	e := newEngine(t, 4, withFiles(t.TempDir(), 1<<20, 0))
	r := e.turn(1, 0, 4)
	e.turn(2, 100, 4) // evicts all of the first from the host
	next := request(7, append(tokens(0, 16), 99), 17)
	require.Equal(t, 16, e.s.Lookup(next, 0).Tokens)
	back := table(10, 5)
	e.s.Allocated(next, back, 0, 16)
	e.flush()
	require.Equal(t, connector.Received, e.next().Kind)
	for i := range 4 {
		e.has(r, i, back[0][i])
	}
}

func TestTornAndForeignFilesAreDeleted(t *testing.T) {
	dir := t.TempDir()
	e := newEngine(t, 8, withFiles(dir, 1<<20, 1))
	e.turn(1, 0, 4)
	require.NoError(t, e.w.Close())
	list := names(t, dir)
	require.Len(t, list, 4)
	cut := filepath.Join(dir, list[0])
	raw, err := os.ReadFile(cut)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(cut, raw[:len(raw)-1], 0o600))
	flip := filepath.Join(dir, list[1])
	raw, err = os.ReadFile(flip)
	require.NoError(t, err)
	raw[50] ^= 1 // in the head
	require.NoError(t, os.WriteFile(flip, raw, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, tempPrefix+"123"), []byte("half"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "empty"+fileSuffix), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("mine"), 0o600))

	f, err := openFiles(FileConfig{Dir: dir, Bytes: 1 << 20}, fingerprint(e.layout, e.regions))
	require.NoError(t, err)
	require.Len(t, f.keys(), 2)
	require.ElementsMatch(t, []string{list[2], list[3], "notes.txt"}, names(t, dir), "other people's files stay")

	other := e.layout
	other.Model = "m2"
	f, err = openFiles(FileConfig{Dir: dir, Bytes: 1 << 20}, fingerprint(other, e.regions))
	require.NoError(t, err)
	require.Empty(t, f.keys())
	require.Equal(t, []string{"notes.txt"}, names(t, dir), "another model's are foreign")
}

func TestDamagedBlockIsNeverLoaded(t *testing.T) {
	dir := t.TempDir()
	e := newEngine(t, 8, withFiles(dir, 1<<20, 0))
	r := e.turn(1, 0, 4)
	require.NoError(t, e.w.Close())
	path := filepath.Join(dir, names(t, dir)[0])
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	raw[len(raw)-1] ^= 1 // in the last block
	require.NoError(t, os.WriteFile(path, raw, 0o600))

	again := newEngine(t, 8, withFiles(dir, 1<<20, 0))
	next := request(7, append(tokens(0, 16), 99), 17)
	require.Equal(t, 16, again.s.Lookup(next, 0).Tokens)
	back := table(10, 5)
	again.s.Allocated(next, back, 0, 16)
	again.flush()
	ev := again.next()
	require.Equal(t, connector.Failed, ev.Kind)
	require.Equal(t, back[0][3:4], ev.Blocks)
	ev = again.next()
	require.Equal(t, connector.Received, ev.Kind)
	for i := range 3 {
		again.has(r, i, back[0][i])
	}
	require.Empty(t, names(t, dir), "the file is gone")
	require.Zero(t, again.s.Stats().FileBlocks, "and nobody is promised it again")
	require.Zero(t, again.s.Lookup(request(8, next.Tokens, 17), 0).Tokens)
}

func TestFileTierKeepsItsSize(t *testing.T) {
	dir := t.TempDir()
	one := int64(fileHead+4*fileEntry+fileTail) + 4*512
	e := newEngine(t, 16, withFiles(dir, 3*one, 0))
	for i := range 5 {
		e.turn(uint32(i+1), 100*i, 4)
	}
	files, size := e.w.files.size()
	require.Equal(t, 3, files)
	require.Equal(t, 3*one, size)
	require.Len(t, names(t, dir), 3)
	require.Equal(t, 12, e.s.Stats().FileBlocks)
	// A smaller size at the next start shrinks it, the oldest first.
	require.NoError(t, e.w.Close())
	f, err := openFiles(FileConfig{Dir: dir, Bytes: one}, fingerprint(e.layout, e.regions))
	require.NoError(t, err)
	require.Len(t, f.keys(), 4)
	_, _, err = f.put(make([]Key, 9), make([][]byte, 9))
	require.NoError(t, err)
	_, _, err = f.put([]Key{{}}, [][]byte{make([]byte, one)})
	require.ErrorContains(t, err, "does not fit")
}

func TestFileWriteErrors(t *testing.T) {
	if os.Getuid() == 0 {
		t.Log("as root a folder without permission is writable: the folder is removed instead")
	}
	dir := filepath.Join(t.TempDir(), "tier")
	e := newEngine(t, 8, withFiles(dir, 1<<20, 0))
	require.NoError(t, os.RemoveAll(dir)) // as a full or unplugged disk
	e.turn(1, 0, 4)
	require.EqualValues(t, 1, e.w.Stats().FileErrors)
	require.Zero(t, e.s.Stats().FileBlocks)
	require.Equal(t, 16, e.s.Lookup(request(2, tokens(0, 17), 17), 0).Tokens, "the host has it")
	require.Zero(t, e.s.Stats().Jobs)

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := openFiles(FileConfig{Dir: file, Bytes: 1}, [32]byte{})
	require.ErrorContains(t, err, "choose a folder that this user may write to")
	_, err = openFiles(FileConfig{Dir: dir}, [32]byte{})
	require.ErrorContains(t, err, "a size above 0")
}

func FuzzParseHead(f *testing.F) {
	fp := [32]byte{1}
	f.Add(appendHead(nil, fp, []fileBlock{{key: key(3), length: 7, crc: 9}, {key: key(4), length: 1}}))
	huge := appendHead(nil, fp, []fileBlock{{}})
	binary.LittleEndian.PutUint32(huge[40:], 1<<31)
	f.Add(huge)
	f.Add([]byte(strings.Repeat("SLCKVF01", 30)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		blocks, size, err := parseHead(bytes.NewReader(raw), fp)
		if err != nil {
			return
		}
		head := appendHead(nil, fp, blocks)
		require.Equal(t, raw[:len(head)], head)
		require.GreaterOrEqual(t, size, int64(len(head)))
	})
}

func TestOrderOfUseSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	f, err := openFiles(FileConfig{Dir: dir, Bytes: 1 << 20}, [32]byte{})
	require.NoError(t, err)
	for i := range 3 {
		_, _, err := f.put([]Key{key(i)}, [][]byte{{1}})
		require.NoError(t, err)
	}
	at := time.Now()
	for i, loc := range []int{2, 0, 1} { // 2 is the oldest now
		require.NoError(t, os.Chtimes(filepath.Join(dir, f.where[key(loc)].file.name), at, at.Add(time.Duration(i)*time.Hour)))
	}
	f, err = openFiles(FileConfig{Dir: dir, Bytes: 1 << 20}, [32]byte{})
	require.NoError(t, err)
	require.Equal(t, []Key{key(2), key(0), key(1)}, f.keys())
}
