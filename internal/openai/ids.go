package openai

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// AppendIDs appends the list of token ids in JSON to dst.
func AppendIDs[T ~int32](dst []byte, ids []T) []byte {
	dst = append(dst, '[')
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(id), 10)
	}
	return append(dst, ']')
}

// ParseIDs reads a list of token ids in JSON; false when it is none.
func ParseIDs(list []byte) (ids []int32, ok bool) {
	if ids, ok = parseIDs(list); ok {
		return ids, true
	}
	if json.Unmarshal(list, &ids) != nil || bytes.Contains(list, []byte("null")) { // which it takes for 0
		return nil, false
	}
	return ids, true
}

// parseIDs reads a list of token ids that is written as most clients write it: plain
// digits, with or without a space behind each comma. What it does not take, false,
// may still be such a list, or none.
func parseIDs(list []byte) (ids []int32, ok bool) {
	if len(list) < 3 || list[0] != '[' || list[len(list)-1] != ']' {
		return nil, false
	}
	ids = make([]int32, 0, 1+min(bytes.Count(list, []byte{','}), len(list)/2)) // the commas may be others'
	for i := 1; ; i++ {
		if list[i] == ' ' {
			i++
		}
		start, id := i, int32(0)
		for ; list[i]-'0' <= 9; i++ { // the bracket ends the last one
			id = id*10 + int32(list[i]-'0')
		}
		if n := i - start; n == 0 || n > 9 || (n > 1 && list[start] == '0') {
			return nil, false
		}
		ids = append(ids, id)
		switch {
		case i == len(list)-1:
			return ids, true
		case list[i] != ',':
			return nil, false
		}
	}
}
