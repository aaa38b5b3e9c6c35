package route

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// SessionKey identifies a session of one tenant. It has a fixed size whatever
// the length of the session id.
type SessionKey [16]byte

// KeyOf derives the key of a tenant's session id. Two tenants never share a
// key, so a guessed id steers nothing of another tenant.
func KeyOf(tenant, id string) SessionKey {
	h := sha256.New()
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(tenant)))
	h.Write(n[:])
	h.Write([]byte(tenant))
	h.Write([]byte(id))
	var sum [sha256.Size]byte
	return SessionKey(h.Sum(sum[:0])[:16])
}

// Source is a place where a request may name its session.
type Source uint8

// The sources. SourceSessionHeader and SourceConversation are the two that the
// rules name; the others are opt-in and follow what common clients send.
const (
	SourceNone           Source = iota
	SourceSessionHeader         // header X-Session-ID
	SourceConversation          // body member conversation_id, a non-empty string
	SourceClaudeCode            // header X-Claude-Code-Session-Id
	SourceSessionID             // header session-id
	SourceOpenCode              // header x-opencode-session
	SourceRoutingKey            // header X-SMG-Routing-Key
	SourcePromptCacheKey        // body member prompt_cache_key, a non-empty string
	SourcePreviousID            // body member previous_response_id: the session of that answer
	SourceHistory               // the longest known history that the messages extend
)

var sources = [...]struct{ name, header, member string }{
	SourceNone:           {name: "none"},
	SourceSessionHeader:  {name: "X-Session-ID", header: "X-Session-Id"},
	SourceConversation:   {name: "conversation_id", member: "conversation_id"},
	SourceClaudeCode:     {name: "X-Claude-Code-Session-Id", header: "X-Claude-Code-Session-Id"},
	SourceSessionID:      {name: "session-id", header: "Session-Id"},
	SourceOpenCode:       {name: "x-opencode-session", header: "X-Opencode-Session"},
	SourceRoutingKey:     {name: "X-SMG-Routing-Key", header: "X-Smg-Routing-Key"},
	SourcePromptCacheKey: {name: "prompt_cache_key", member: "prompt_cache_key"},
	SourcePreviousID:     {name: "previous_response_id", member: "previous_response_id"},
	SourceHistory:        {name: "history"},
}

func (s Source) String() string {
	if int(s) < len(sources) {
		return sources[s].name
	}
	return fmt.Sprintf("source %d", uint8(s))
}

// ErrSource reports a name that is no session source.
var ErrSource = errors.New("unknown session source")

// ParseSource finds a source by its name, ignoring case.
func ParseSource(name string) (Source, error) {
	for i := range sources {
		if Source(i) != SourceNone && strings.EqualFold(sources[i].name, name) {
			return Source(i), nil
		}
	}
	return SourceNone, fmt.Errorf("%w %q", ErrSource, name)
}

// DefaultSources are the header X-Session-ID, then the member conversation_id.
func DefaultSources() []Source { return []Source{SourceSessionHeader, SourceConversation} }

// Request gives a resolver access to one request. The proxy implements it; all
// calls happen inside Resolve, on the caller's goroutine.
type Request interface {
	// Header is the value of a header in canonical form; empty when absent.
	Header(canonical string) string
	// Member is a top-level body member that is a string; false for any other
	// type and when absent.
	Member(name string) (string, bool)
}

// Resolve finds the session id that a request names: the first source in order
// that gives a non-empty one. A wrong type counts as absent. SourcePreviousID
// gives the id of the earlier answer, which the caller maps to its session;
// SourceHistory never answers here.
func Resolve(order []Source, req Request) (id string, from Source) {
	for _, s := range order {
		switch place := sources[s]; {
		case place.header != "":
			id = req.Header(place.header)
		case place.member != "":
			id, _ = req.Member(place.member)
		}
		if id != "" {
			return id, s
		}
	}
	return "", SourceNone
}
