package proxy

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/internal/openai"
)

// gate bounds how many requests of one tenant are under way and how many wait.
type gate struct {
	limit, queue int
	patience     time.Duration

	mu      sync.Mutex
	tenants map[string]*line
}

// line is one tenant's requests. It lives while it has any.
type line struct {
	active  int
	waiting []chan struct{} // first come first served; closed when its turn has come
}

func newGate(limit, queue int, patience time.Duration) *gate {
	return &gate{limit: limit, queue: queue, patience: patience, tenants: map[string]*line{}}
}

var errFull = errors.New("the tenant's queue is full")
var errPatience = errors.New("the wait in the tenant's queue took too long")

// enter waits for the tenant's turn. Every enter without error is followed by
// one leave.
func (g *gate) enter(ctx context.Context, tenant string) error {
	if g.limit <= 0 {
		return nil
	}
	g.mu.Lock()
	l := g.tenants[tenant]
	if l == nil {
		l = &line{}
		g.tenants[tenant] = l
	}
	if l.active < g.limit {
		l.active++
		g.mu.Unlock()
		return nil
	}
	if len(l.waiting) >= g.queue {
		g.mu.Unlock()
		return errFull
	}
	turn := make(chan struct{})
	l.waiting = append(l.waiting, turn)
	g.mu.Unlock()
	t := time.NewTimer(g.patience)
	defer t.Stop()
	var why error
	select {
	case <-turn:
		return nil
	case <-t.C:
		why = errPatience
	case <-ctx.Done():
		why = ctx.Err()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, c := range l.waiting {
		if c == turn {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			return why
		}
	}
	g.pass(tenant, l) // the turn came in the same moment: it goes to the next
	return why
}

// leave ends a request that was entered.
func (g *gate) leave(tenant string) {
	if g.limit <= 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pass(tenant, g.tenants[tenant])
}

// pass hands a place to the next in line, or gives it up.
func (g *gate) pass(tenant string, l *line) {
	if len(l.waiting) > 0 {
		close(l.waiting[0])
		l.waiting = l.waiting[1:]
		return
	}
	l.active--
	if l.active == 0 {
		delete(g.tenants, tenant)
	}
}

// Clients are the API keys that may use the proxy, by the digest of the key.
type Clients map[[sha256.Size]byte]string

// ReadClients reads a key a line, or name=key; lines that are empty or start
// with # are left out. A key without a name is a tenant of its own.
func ReadClients(src io.Reader) (Clients, error) {
	out := Clients{}
	lines := bufio.NewScanner(src)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		name, key, named := strings.Cut(text, "=")
		if !named {
			name, key = fmt.Sprintf("client-%d", n), text
		}
		if name, key = strings.TrimSpace(name), strings.TrimSpace(key); key == "" || name == "" {
			return nil, fmt.Errorf("line %d: a key, or name=key, is expected", n)
		}
		digest := sha256.Sum256([]byte(key))
		if _, twice := out[digest]; twice {
			return nil, fmt.Errorf("line %d: the key is there twice", n)
		}
		out[digest] = name
	}
	return out, lines.Err()
}

// tenant finds whose request it is: the client of its key where keys are
// checked, else the key itself. It gives a problem when the key is not accepted.
func (p *Proxy) tenant(r *http.Request) (string, *openai.Error) {
	given := r.Header.Get("Authorization")
	if len(p.cfg.Clients) == 0 {
		return given, nil
	}
	scheme, key, _ := strings.Cut(given, " ")
	if strings.EqualFold(scheme, "bearer") {
		// The digest is looked up, not compared byte by byte, so the time tells
		// nothing about a key.
		if name, ok := p.cfg.Clients[sha256.Sum256([]byte(strings.TrimSpace(key)))]; ok {
			return name, nil
		}
	}
	return "", openai.Unauthorized()
}
