package pd

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/sluice-serving/sluice/kvcache"
)

// decoder reads typed fields of an object and collects what is wrong.
type decoder struct {
	fields map[string]json.RawMessage
	errs   []error
}

// get returns a field that is present and not null.
func (d *decoder) get(name string) (json.RawMessage, bool) {
	v, ok := d.fields[name]
	return v, ok && string(v) != "null"
}

func (d *decoder) fail(name, want string, v json.RawMessage) {
	d.errs = append(d.errs, &ParamError{name, want, kindOf(v)})
}

func (d *decoder) bool(name string, dst *bool) {
	if v, ok := d.get(name); ok && json.Unmarshal(v, dst) != nil {
		d.fail(name, "true or false", v)
	}
}

func (d *decoder) string(name string, dst *string) {
	if v, ok := d.get(name); ok && json.Unmarshal(v, dst) != nil {
		d.fail(name, "a string", v)
	}
}

func (d *decoder) int(name string, dst *int, least, most int) {
	v, ok := d.get(name)
	if !ok {
		return
	}
	n, err := strconv.Atoi(string(v))
	if err != nil {
		d.fail(name, "an integer", v)
		return
	}
	if n < least || n > most {
		d.errs = append(d.errs, &ParamError{name, fmt.Sprintf("an integer from %d to %d", least, most), strconv.Itoa(n)})
		return
	}
	*dst = n
}

func (d *decoder) optInt(name string, dst **int) {
	if _, ok := d.get(name); ok {
		var n int
		d.int(name, &n, math.MinInt32, math.MaxInt32)
		*dst = &n
	}
}

func (d *decoder) float(name string, dst **float64) {
	if v, ok := d.get(name); ok {
		var f float64
		if json.Unmarshal(v, &f) != nil {
			d.fail(name, "a number", v)
			return
		}
		*dst = &f
	}
}

// blocks reads a list of block ids per KV group. A flat list is one group.
func (d *decoder) blocks(name string, dst *[][]kvcache.BlockID) {
	v, ok := d.get(name)
	if !ok {
		return
	}
	const want = "a list of block ids per KV group"
	var groups [][]kvcache.BlockID
	if json.Unmarshal(v, &groups) != nil {
		var flat []kvcache.BlockID
		if json.Unmarshal(v, &flat) != nil {
			d.fail(name, want, v)
			return
		}
		groups = [][]kvcache.BlockID{flat}
	}
	n := 0
	for g, list := range groups {
		n += len(list)
		for _, b := range list {
			if b < 0 {
				d.errs = append(d.errs, &ParamError{name, want, fmt.Sprintf("block %d in group %d", b, g)})
				return
			}
		}
	}
	if n > maxParamBlocks {
		d.errs = append(d.errs, &ParamError{name, fmt.Sprintf("at most %d block ids", maxParamBlocks), strconv.Itoa(n)})
		return
	}
	*dst = groups
}

// kindOf names a JSON value's type, with short values themselves.
func kindOf(v json.RawMessage) string {
	kind := "a number"
	switch v[0] {
	case '"':
		kind = "a string"
	case '{':
		return "an object"
	case '[':
		kind = "a list"
	case 't', 'f':
		kind = "a boolean"
	case 'n':
		return "null"
	}
	if len(v) <= 32 {
		return kind + " " + string(v)
	}
	return kind
}
