package kvcache

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Dump writes the whole state as readable text, one line a node, a sequence and
// a fence. Equal states give equal text. Copies are printed as block ids, the
// oldest first, joined by "=" where a position has several and by "|" between
// groups; "-" is a hole. A held block is followed by "*" and its number of holders.
func (c *Cache) Dump(w io.Writer) error {
	var b strings.Builder
	st := c.Stats()
	fmt.Fprintf(&b, "free %d cached %d held %d of %d\n", st.Free, st.Cached, st.Held, st.Usable)
	spaces := make([]int32, 0, len(c.byName))
	for i := range c.spaces {
		if c.spaces[i].root != 0 {
			spaces = append(spaces, int32(i))
		}
	}
	slices.SortFunc(spaces, func(x, y int32) int { return cmp.Compare(c.spaces[x].ns.String(), c.spaces[y].ns.String()) })
	for _, i := range spaces {
		fmt.Fprintf(&b, "namespace %s\n", c.spaces[i].ns)
		c.dumpChildren(&b, c.spaces[i].root, "  ")
	}
	seqs := slices.Clone(c.seqs)
	slices.SortFunc(seqs, func(x, y *Seq) int { return cmp.Compare(x.order, y.order) })
	for _, s := range seqs {
		fmt.Fprintf(&b, "seq %d published %d", s.order, s.published)
		c.dumpTables(&b, s)
	}
	for i := range c.fences {
		if f := &c.fences[i]; f.live {
			fmt.Fprintf(&b, "fence %d", i)
			c.dumpTables(&b, &f.seq)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (c *Cache) dumpChildren(b *strings.Builder, i int32, indent string) {
	var children []int32
	for j := c.t.at(i).child; j != 0; j = c.t.at(j).next {
		children = append(children, j)
	}
	slices.SortFunc(children, func(x, y int32) int {
		return slices.Compare(c.t.tokens(c.t.at(x))[:c.bs], c.t.tokens(c.t.at(y))[:c.bs])
	})
	for _, j := range children {
		nd := c.t.at(j)
		b.WriteString(indent)
		toks := c.t.tokens(nd)
		for off := range int(nd.n) {
			if off > 0 {
				b.WriteString("  ")
			}
			fmt.Fprintf(b, "%v:", toks[off*c.bs:(off+1)*c.bs])
			for g := range c.groups {
				if g > 0 {
					b.WriteByte('|')
				}
				c.dumpCopies(b, c.head(nd.run+int32(off), g))
			}
		}
		for _, slot := range c.leasesAt(j) {
			l := &c.leases[slot]
			fmt.Fprintf(b, "  %s until %d", [...]string{isLease: "lease", isAwait: "awaited"}[l.kind], l.deadline)
		}
		b.WriteByte('\n')
		c.dumpChildren(b, j, indent+"  ")
	}
}

func (c *Cache) dumpCopies(b *strings.Builder, first BlockID) {
	if first == NullBlock {
		b.WriteByte('-')
		return
	}
	for id := first; ; {
		fmt.Fprintf(b, "%d", id)
		if r := c.blocks[id].refs; r > 0 {
			fmt.Fprintf(b, "*%d", r)
		}
		if id = c.blocks[id].next; id == first {
			return
		}
		b.WriteByte('=')
	}
}

func (c *Cache) dumpTables(b *strings.Builder, s *Seq) {
	for g := range s.tables {
		fmt.Fprintf(b, " %v", s.tables[g])
	}
	b.WriteByte('\n')
}

// String returns the namespace's fields, each with its name; the plain namespace is "plain".
func (ns Namespace) String() string {
	var f []string
	add := func(name, v string) {
		if v != "" {
			f = append(f, fmt.Sprintf("%s=%q", name, v))
		}
	}
	add("tenant", ns.Tenant)
	add("salt", ns.Salt)
	if ns.LoRA != (LoRA{}) {
		f = append(f, fmt.Sprintf("lora=%d:%q", ns.LoRA.ID, ns.LoRA.Name))
	}
	add("media", ns.Media)
	add("variant", ns.Variant)
	if len(f) == 0 {
		return "plain"
	}
	return strings.Join(f, " ")
}
