package offload

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func key(n int) Key { return Key{Hash: [32]byte{byte(n), byte(n >> 8)}} }

func any1(slot) bool { return true }

func TestLRUOrder(t *testing.T) {
	l := newEvictor(LRU, 4)
	for s := range slot(4) {
		l.add(s, key(int(s)))
	}
	l.touch(0)
	require.Equal(t, []slot{1, 2, 3}, l.victims(3, any1))
	require.Equal(t, []slot{2, 3, 0}, l.victims(9, func(s slot) bool { return s != 1 }))
	l.evict(2)
	l.remove(3)
	l.touch(3)
	require.Equal(t, []slot{1, 0}, l.victims(9, any1))
}

func TestARCKeepsWhatIsUsedAgain(t *testing.T) {
	a := newARC(4)
	for s := range slot(4) {
		a.add(s, key(int(s)))
	}
	a.touch(0)
	a.touch(1)
	require.Equal(t, []slot{2, 3, 0, 1}, a.victims(4, any1), "what was used once goes first")
	a.evict(2)
	require.Zero(t, a.target)
	a.add(2, key(2)) // its ghost says that recent was too small
	require.Equal(t, 1, a.target)
	require.Equal(t, &a.frequent, a.at[2].list)
	a.evict(0) // of frequent
	a.add(0, key(0))
	require.Equal(t, 0, a.target, "and this one that frequent was")
	for n := range 20 { // a scan does not push out what is used again
		v := a.victims(1, any1)
		a.evict(v[0])
		a.add(v[0], key(100+n))
	}
	require.Equal(t, 3, a.frequent.Len())
	require.LessOrEqual(t, a.ghosts[0].order.Len(), 4)
	require.LessOrEqual(t, a.ghosts[1].order.Len(), 4)
}

func TestParsePolicy(t *testing.T) {
	for in, want := range map[string]Policy{"": LRU, "lru": LRU, "arc": ARC} {
		p, err := ParsePolicy(in)
		require.NoError(t, err)
		require.Equal(t, want, p)
	}
	_, err := ParsePolicy("fifo")
	require.ErrorContains(t, err, `want lru or arc, got "fifo"`)
}

// TestPoolAccount drives the pool at random and checks its account.
func TestPoolAccount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "slots")
		p := newPool(n, Policy(rapid.IntRange(0, 1).Draw(t, "policy")))
		var used []slot // one entry per user
		content := map[slot]Key{}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { p.check() },
			"alloc": func(t *rapid.T) {
				k := rapid.IntRange(0, n+1).Draw(t, "n")
				can := p.available()
				got, ok := p.alloc(k)
				require.Equal(t, k <= can, ok)
				for _, s := range got {
					require.NotContains(t, used, s, "nobody else uses it")
					delete(content, s)
				}
				used = append(used, got...)
			},
			"promise and publish": func(t *rapid.T) {
				if len(used) == 0 {
					t.Skip()
				}
				s := rapid.SampledFrom(used).Draw(t, "slot")
				if p.slots[s].state == slotPrivate {
					k := key(rapid.IntRange(0, 9).Draw(t, "key"))
					p.promise(s, k)
				}
				p.publish(s)
				if p.slots[s].state == slotShared {
					content[s] = p.slots[s].key
				}
			},
			"hold": func(t *rapid.T) {
				s, isReady, _ := p.find(key(rapid.IntRange(0, 9).Draw(t, "key")))
				if isReady {
					require.Equal(t, content[s], p.slots[s].key)
					p.hold(s)
					used = append(used, s)
				}
			},
			"drop": func(t *rapid.T) {
				if len(used) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(used)-1).Draw(t, "user")
				p.drop(used[i])
				used = append(used[:i], used[i+1:]...)
			},
			"reset": func(t *rapid.T) { p.reset() },
		})
		for _, s := range used {
			p.drop(s)
		}
		require.Equal(t, n, p.available(), "everything can be had again")
	})
}
