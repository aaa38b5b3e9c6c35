package pd

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/sluice-serving/sluice/kvcache"
)

// Params is the object kv_transfer_params of a request or a response. The
// names on the wire are those that P/D proxies forward between vLLM engines;
// those of the lease and of the append attempt are this project's own.
// Unknown names are ignored.
type Params struct {
	// DoRemoteDecode asks P to keep the prompt's KV for a decoder.
	DoRemoteDecode bool
	// DoRemotePrefill tells D that P has computed the prompt's KV.
	DoRemotePrefill bool
	// AppendPrefill marks an attempt to prefill on the prefix that D holds.
	AppendPrefill bool

	EngineID   string              // of the engine that holds the blocks; changes at every start
	RequestID  string              // of the request there
	Host       string              // control channel of that engine
	Port       int                 // 1 to 65535
	Blocks     [][]kvcache.BlockID // per KV group, in the order of the tokens
	BlockSize  int                 // tokens
	NumTokens  int                 // whose KV is in the blocks; 0: not told, the prompt
	NumPrompt  int                 // blocks that the prompt spans
	LastToken  *int                // the token that P sampled
	Lease      Lease
	ExpiryTime *float64 // not used for decisions: the clocks differ
	Mode       string   // "pull", the default, or "push": P writes while it computes
	Transfer   string   // of a push: the name under which P and D meet, unguessable
	Metaserver string   // of a push: where D asks for P, who is not known yet
	prefix     prefix   // of a turn's blocks: the tokens that they hold

	ETAMillis      *float64 // what the prefiller would take, from the proxy
	ResidentTokens *int     // of the session at the turn's end
	ResidentUntil  *float64 // milliseconds
}

// Lease names the right to a finished request's blocks.
type Lease struct {
	Slot       uint32 `json:"slot"`
	Generation uint32 `json:"generation"` // 0: no lease
	Secret     Secret `json:"secret"`
}

// Secret proves that the holder was given the lease.
type Secret [16]byte

// MarshalText writes 32 hex digits.
func (s Secret) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%x", s[:]), nil }

// UnmarshalText reads 32 hex digits.
func (s *Secret) UnmarshalText(b []byte) error {
	if len(b) != 2*len(s) {
		return fmt.Errorf("secret of %d characters, want %d hex digits", len(b), 2*len(s))
	}
	if _, err := hex.Decode(s[:], b); err != nil {
		return errors.New("secret is not hexadecimal")
	}
	return nil
}

// String hides the secret.
func (s Secret) String() string { return fmt.Sprintf("%x…", s[:2]) }

// maxParamBlocks bounds the block ids that one object may name.
const maxParamBlocks = 1 << 22

// ParamError is a kv_transfer_params that cannot be used.
type ParamError struct {
	Field string // empty: the object as a whole
	Want  string
	Got   string
}

func (e *ParamError) Error() string {
	name := "kv_transfer_params"
	if e.Field != "" {
		name += "." + e.Field
	}
	return fmt.Sprintf("%s: want %s, got %s", name, e.Want, e.Got)
}

// ParseParams reads the object. Null or nothing gives nil without an error.
// The error joins a *ParamError per field that is wrong.
func ParseParams(raw []byte) (*Params, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		if raw[0] != '{' && json.Valid(raw) {
			return nil, &ParamError{Want: "an object", Got: kindOf(raw)}
		}
		return nil, &ParamError{Want: "an object", Got: "malformed JSON"}
	}
	p := &Params{}
	d := decoder{fields: fields}
	d.bool("do_remote_decode", &p.DoRemoteDecode)
	d.bool("do_remote_prefill", &p.DoRemotePrefill)
	d.bool("decoder_append_prefill", &p.AppendPrefill)
	d.string("remote_engine_id", &p.EngineID)
	d.string("remote_request_id", &p.RequestID)
	d.string("remote_host", &p.Host)
	d.int("remote_port", &p.Port, 1, 65535)
	d.blocks("remote_block_ids", &p.Blocks)
	d.int("remote_block_size", &p.BlockSize, 1, 1<<20)
	d.int("remote_num_tokens", &p.NumTokens, 0, 1<<30)
	d.int("num_prompt_blocks", &p.NumPrompt, 0, 1<<30)
	d.optInt("last_token_id", &p.LastToken)
	d.float("remote_blocks_expiry_time", &p.ExpiryTime)
	d.string("transfer_mode", &p.Mode)
	d.string("transfer_id", &p.Transfer)
	d.string("metaserver", &p.Metaserver)
	d.float("remote_eta_ms", &p.ETAMillis)
	d.optInt("resident_tokens", &p.ResidentTokens)
	d.float("resident_until_ms", &p.ResidentUntil)
	var hashes string
	if d.string("remote_prefix", &hashes); hashes != "" {
		var err error
		if p.prefix, err = parsePrefix(hashes); err != nil {
			d.errs = append(d.errs, &ParamError{"remote_prefix", "base64 of 16 bytes a block", err.Error()})
		}
	}
	if v, ok := d.get("remote_lease"); ok {
		if err := json.Unmarshal(v, &p.Lease); err != nil {
			d.fail("remote_lease", `an object {"slot","generation","secret"}`, v)
		}
	}
	var virtual bool
	if d.bool("do_virtual", &virtual); virtual {
		d.errs = append(d.errs, &ParamError{"do_virtual", "false: KV that was not computed is never used", "true"})
	}
	if err := errors.Join(d.errs...); err != nil {
		return nil, err
	}
	return p, p.check()
}

// check reports what the name of a peer's blocks lacks.
func (p *Params) check() error {
	var errs []error
	why := "a value, as do_remote_prefill is true"
	need := func(field string, have bool) {
		if !have {
			errs = append(errs, &ParamError{field, why, "none"})
		}
	}
	switch {
	case p.Mode != "" && p.Mode != "pull" && p.Mode != "push":
		return &ParamError{"transfer_mode", `"pull" or "push"`, fmt.Sprintf("%q", p.Mode)}
	case p.Metaserver != "":
		if _, err := metaserver(p.Metaserver); err != nil {
			return &ParamError{"metaserver", "a URL of http or https", fmt.Sprintf("%q", p.Metaserver)}
		}
		return nil
	case p.Pushed():
		why = `a value, as transfer_mode is "push"`
		need("transfer_id", p.Transfer != "")
		if len(p.Transfer) > maxTransferID {
			errs = append(errs, &ParamError{"transfer_id", fmt.Sprintf("at most %d characters", maxTransferID), strconv.Itoa(len(p.Transfer))})
		}
		if p.DoRemotePrefill {
			need("remote_engine_id", p.EngineID != "")
			need("remote_host", p.Host != "")
			need("remote_port", p.Port != 0)
		}
		return errors.Join(errs...)
	case p.DoRemotePrefill:
	case p.DoRemoteDecode && p.EngineID != "":
		why = "a value, as remote_engine_id is set"
	default:
		return nil
	}
	need("remote_engine_id", p.EngineID != "")
	need("remote_request_id", p.RequestID != "")
	need("remote_host", p.Host != "")
	need("remote_port", p.Port != 0)
	need("remote_block_ids", p.Blocks != nil)
	need("remote_lease", p.Lease.Generation != 0)
	return errors.Join(errs...)
}

// Pushed says whether P writes the KV to D, rather than D reading it.
func (p *Params) Pushed() bool { return p.Mode == "push" || p.Metaserver != "" }

const maxTransferID = 128

// Clone copies the object, so that two requests never share one.
func (p *Params) Clone() *Params {
	if p == nil {
		return nil
	}
	c := *p
	c.Blocks = make([][]kvcache.BlockID, len(p.Blocks))
	for g := range p.Blocks {
		c.Blocks[g] = append([]kvcache.BlockID(nil), p.Blocks[g]...)
	}
	if p.Blocks == nil {
		c.Blocks = nil
	}
	return &c
}

// MarshalJSON writes the names of the wire. Remote fields are null without a
// remote engine, as engines expect.
func (p *Params) MarshalJSON() ([]byte, error) {
	out := map[string]any{
		"do_remote_decode": p.DoRemoteDecode, "do_remote_prefill": p.DoRemotePrefill,
		"remote_engine_id": nil, "remote_request_id": nil, "remote_host": nil, "remote_port": nil, "remote_block_ids": nil,
	}
	if p.AppendPrefill {
		out["decoder_append_prefill"] = true
	}
	if p.EngineID != "" {
		out["remote_engine_id"], out["remote_request_id"] = p.EngineID, p.RequestID
		out["remote_host"], out["remote_port"] = p.Host, orNull(p.Port)
		out["remote_block_ids"] = p.Blocks
		out["remote_block_size"], out["num_prompt_blocks"] = orNull(p.BlockSize), p.NumPrompt
		out["remote_num_tokens"] = p.NumTokens
		out["remote_lease"] = p.Lease
		out["remote_blocks_expiry_time"] = p.ExpiryTime
		out["transfer_mode"] = p.Mode
		out["tp_size"], out["remote_ptp_size"], out["remote_pcp_size"], out["remote_dcp_size"] = 1, 1, 1, 1
		out["remote_multi_nodes_meta_mapping"] = map[string]any{}
		out["last_token_id"] = p.LastToken
		if p.prefix != nil {
			out["remote_prefix"] = p.prefix.String()
		}
	}
	if p.Pushed() {
		out["transfer_mode"], out["transfer_id"] = "push", p.Transfer
	}
	if p.Metaserver != "" {
		out["metaserver"] = p.Metaserver
	}
	if p.ETAMillis != nil {
		out["remote_eta_ms"] = *p.ETAMillis
	}
	if p.ResidentTokens != nil {
		out["resident_tokens"] = *p.ResidentTokens
	}
	if p.ResidentUntil != nil {
		out["resident_until_ms"] = *p.ResidentUntil
	}
	return json.Marshal(out)
}

func orNull(n int) any {
	if n == 0 {
		return nil
	}
	return n
}

// UnmarshalJSON reads what ParseParams reads.
func (p *Params) UnmarshalJSON(b []byte) error {
	q, err := ParseParams(b)
	if err != nil || q == nil {
		return err
	}
	*p = *q
	return nil
}
