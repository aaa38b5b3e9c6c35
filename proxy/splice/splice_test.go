package splice

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestEdits(t *testing.T) {
	for _, c := range []struct {
		in, want string
		edits    []Edit
	}{
		{`{}`, `{"a":1}`, []Edit{Set("a", []byte("1"))}},
		{`{ }`, `{ "a":1,"b":2}`, []Edit{Set("a", []byte("1")), Set("b", []byte("2"))}},
		{`{"z":1.0e0,"a":[ 1 ]}`, `{"z":1.0e0,"a":2}`, []Edit{Set("a", []byte("2"))}},
		{`{"a":1,"b":2,"c":3}`, `{"b":2,"c":3}`, []Edit{Delete("a")}},
		{`{"a":1,"b":2,"c":3}`, `{"a":1,"c":3}`, []Edit{Delete("b")}},
		{`{"a":1,"b":2,"c":3}`, `{"a":1}`, []Edit{Delete("b"), Delete("c")}},
		{`{"a":1, "b":2 ,"c":3}`, `{"c":3}`, []Edit{Delete("a"), Delete("b")}},
		{`{"a":1,"b":2}`, `{}`, []Edit{Delete("b"), Delete("a")}},
		{`{"a":1}`, `{"x":9}`, []Edit{Delete("a"), Set("x", []byte("9"))}},
		{` {"a" : 1 , "b" : 2 } `, ` {"a" : 5 ,"c":6} `, []Edit{Set("c", []byte("6")), Set("a", []byte("5")), Delete("b")}},
		{`{"a":1}`, `{"a":1}`, []Edit{Delete("b"), Replace("c", []byte("1"))}},
		{`{"a":1}`, `{"a":2,"b":3}`, []Edit{Replace("a", []byte("2")), Set("b", []byte("3"))}},
		{`{"\u0061":1}`, `{"\u0061":2}`, []Edit{Set("a", []byte("2"))}},
		{`{"a":1}`, `{"a":1,"q\"":"x\"y"}`, []Edit{Set(`q"`, []byte(`"x\"y"`))}},
	} {
		o, err := Parse([]byte(c.in))
		require.NoError(t, err, c.in)
		require.Equal(t, c.want, string(o.Apply(nil, c.edits...)))
		require.Equal(t, c.want, string(bytes.Join(o.Splice(nil, c.edits...), nil)))
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct {
		in   string
		want error
	}{
		{``, ErrNotObject}, {`[]`, ErrNotObject}, {`null`, ErrNotObject}, {`"a"`, ErrNotObject}, {"\xef\xbb\xbf{}", ErrNotObject},
		{`{`, ErrSyntax}, {`{"a"}`, ErrSyntax}, {`{"a":}`, ErrSyntax}, {`{"a":1,}`, ErrSyntax}, {`{a:1}`, ErrSyntax}, {`{"a":1} x`, ErrSyntax},
		{`{"a":01}`, ErrSyntax}, {`{"a":1.}`, ErrSyntax}, {`{"a":-}`, ErrSyntax}, {`{"a":NaN}`, ErrSyntax}, {`{"a":"\x"}`, ErrSyntax}, {"{\"a\":\"\n\"}", ErrSyntax}, {`{"a":"\u12g4"}`, ErrSyntax},
		{`{"a":[1,2,03,4]}`, ErrSyntax}, {`{"a":[12345678,123456789,]}`, ErrSyntax}, {`{"a":[1,,2]}`, ErrSyntax}, {`{"a":[12,34`, ErrSyntax}, {`{"a":[00000000,1]}`, ErrSyntax},
		{`{"a":[1,]}`, ErrSyntax}, {`{"a":[1 2]}`, ErrSyntax}, {`{"a":tru}`, ErrSyntax}, {"{}\x00", ErrSyntax},
		{`{"a":1,"a":2}`, ErrDuplicate}, {`{"a":1,"\u0061":2}`, ErrDuplicate},
		{`{"a":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`, ErrDepth},
		{`{"a":` + strings.Repeat(`{"b":`, 300) + `1` + strings.Repeat("}", 300) + `}`, ErrDepth},
		{"{\"a\":\"\xff\"}", ErrUTF8}, {"{\"\xc3\x28\":1}", ErrUTF8},
	} {
		_, err := Parse([]byte(c.in))
		require.ErrorIs(t, err, c.want, "%.40q", c.in)
		var at *SyntaxError
		require.True(t, errors.As(err, &at))
	}
	var many strings.Builder
	many.WriteString(`{"x":0`)
	for i := range 5000 {
		fmt.Fprintf(&many, `,"k%d":0`, i)
	}
	many.WriteString("}")
	_, err := Parse([]byte(many.String()))
	require.ErrorIs(t, err, ErrSyntax)
}

func TestLookups(t *testing.T) {
	src := []byte(`{"s":"a\tb","n":1.50,"list":[{"role":"user","x":{"role":"no"}},{"r\u006fle":"assistant"}, 3],"e":[]}`)
	o, err := Parse(src)
	require.NoError(t, err)
	s, ok := o.String("s")
	require.True(t, ok)
	require.Equal(t, "a\tb", s)
	_, ok = o.String("n")
	require.False(t, ok)
	require.Equal(t, "1.50", string(o.Raw("n")))
	require.Nil(t, o.Raw("none"))
	require.True(t, o.Has("e"))
	var roles []string
	Elements(o.Raw("list"), func(raw []byte) bool {
		role, ok := StringOf(Field(raw, "role"))
		if ok {
			roles = append(roles, role)
		}
		return true
	})
	require.Equal(t, []string{"user", "assistant"}, roles)
	Elements(o.Raw("e"), func([]byte) bool { t.Fatal("no element"); return false })
	Elements(o.Raw("n"), func([]byte) bool { t.Fatal("no list"); return false })
	var keys []string
	o.Members(func(k string, _ []byte) bool { keys = append(keys, k); return k != "list" })
	require.Equal(t, []string{"s", "n", "list"}, keys)
}

func TestPointer(t *testing.T) {
	doc := []byte(`{"a":[{"b":1},[2,"x"]],"m~n":{"s/t":true},"":0}`)
	for p, want := range map[string]string{
		"": string(doc), "/a/0/b": "1", "/a/1/1": `"x"`, "/m~0n/s~1t": "true", "/": "0",
		"/a/2": "", "/a/01": "", "/a/-": "", "/zz": "", "/a/0/b/c": "", "a": "",
	} {
		require.Equal(t, want, string(Pointer(doc, p)), p)
	}
}

// jsonValue draws the text of a JSON value with odd spacing and number spellings.
func jsonValue(depth int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		kind := rapid.IntRange(0, 5).Draw(t, "kind")
		if depth == 0 {
			kind %= 4
		}
		sp := rapid.SampledFrom([]string{"", " ", "\n\t"}).Draw(t, "space")
		switch kind {
		case 0:
			return rapid.SampledFrom([]string{"0", "-1.50", "1e+09", "12345678901234567890", "1.0E-2"}).Draw(t, "number")
		case 1:
			return rapid.SampledFrom([]string{`"x"`, `"\u00e9\\\"{}[],:"`, `"日本"`, `""`, `"` + strings.Repeat("lorem ", 9) + `"`}).Draw(t, "string")
		case 2:
			return rapid.SampledFrom([]string{"true", "false", "null"}).Draw(t, "word")
		case 3:
			return "[]"
		case 4:
			return "[" + sp + strings.Join(rapid.SliceOfN(jsonValue(depth-1), 0, 3).Draw(t, "list"), sp+","+sp) + "]"
		default:
			return objectText(t, depth-1)
		}
	})
}

func objectText(t *rapid.T, depth int) string {
	sp := rapid.SampledFrom([]string{"", " ", "\r\n"}).Draw(t, "space")
	keys := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "stream", "é"}), 0, 6, rapid.ID[string]).Draw(t, "keys")
	parts := make([]string, len(keys))
	for i, k := range keys {
		parts[i] = sp + `"` + k + `"` + sp + ":" + sp + jsonValue(depth).Draw(t, "value") + sp
	}
	return sp + "{" + strings.Join(parts, ",") + sp + "}" + sp
}

// Records sees what Elements and Each see.
func TestRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := []byte(strings.TrimSpace(jsonValue(3).Draw(t, "value")))
		var want, got []string
		Elements(raw, func(element []byte) bool {
			want = append(want, "element")
			Each(element, func(k, v []byte) { want = append(want, string(k)+"="+string(v)) })
			return true
		})
		Records(raw, func() { got = append(got, "element") }, func(k, v []byte) { got = append(got, string(k)+"="+string(v)) })
		require.Equal(t, want, got, "%s", raw)
	})
}

// TestEditsAgainstMap compares edits with the same edits of a decoded map, and
// asks that the values not edited are the same bytes in the same order.
func TestEditsAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := objectText(t, 2)
		o, err := Parse([]byte(in))
		require.NoError(t, err)
		want := map[string]json.RawMessage{}
		require.NoError(t, json.Unmarshal([]byte(in), &want))
		require.Equal(t, len(want), o.Len())
		var edits []Edit
		edited := map[string]bool{}
		for _, key := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "new", "stream", "é"}), 0, 5, rapid.ID[string]).Draw(t, "edited") {
			edited[key] = true
			v := []byte(strings.TrimSpace(jsonValue(1).Draw(t, "to")))
			_, has := want[key]
			switch rapid.IntRange(0, 2).Draw(t, "edit") {
			case 0:
				edits = append(edits, Set(key, v))
				want[key] = v
			case 1:
				edits = append(edits, Delete(key))
				delete(want, key)
			case 2:
				edits = append(edits, Replace(key, v))
				if has {
					want[key] = v
				}
			}
		}
		out := o.Apply(nil, edits...)
		require.Equal(t, out, bytes.Join(o.Splice(nil, edits...), nil))
		got := map[string]json.RawMessage{}
		require.NoError(t, json.Unmarshal(out, &got), string(out))
		require.Equal(t, want, got)
		again, err := Parse(out)
		require.NoError(t, err)
		order := func(o *Object) (keys []string) {
			o.Members(func(k string, raw []byte) bool {
				if !edited[k] {
					keys = append(keys, k+"="+string(raw))
				}
				return true
			})
			return keys
		}
		require.Equal(t, order(o), order(again))
	})
}

// A list of token ids with one byte changed anywhere, or cut there, is taken for JSON
// where it is JSON.
func TestIntegers(t *testing.T) {
	list := `{"ids":[0,1,12,1234567,12345678,123456789,1234567890123456789,90,100000,7]}`
	for i := range list {
		for _, c := range []byte("0123456789-+.eE ,[]{}\"/:;\x00\x7f\x80\xb0\xff") {
			in := []byte(list)
			in[i] = c
			_, err := Parse(in)
			require.Equal(t, json.Valid(in) && in[0] == '{' && utf8.Valid(in), err == nil, "%q", in)
		}
		_, err := Parse([]byte(list[:i]))
		require.Error(t, err)
	}
}

// BenchmarkParseTokenIDs is the first event of an answer that repeats a prompt of 12,288 ids.
func BenchmarkParseTokenIDs(b *testing.B) {
	body := []byte(`{"id":"x","choices":[{"index":0,"text":"","prompt_token_ids":[` + strings.Repeat("123456,", 12_287) + `7]}]}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	var o Object
	for b.Loop() {
		if err := o.Reset(body); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"a":[1,-2.5e3,"x\u00e9"],"b":{"c":null}}`, `{"a":"\ud800"}`, "{\"k\":\"\x7f\"}", `{ "max_tokens" : 1 }`, `{"ids":[0,12345,123456789,-1,07]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		o, err := Parse(in)
		if err != nil {
			// What is refused though valid JSON is refused for a stated reason.
			if json.Valid(in) && errors.Is(err, ErrSyntax) && bytes.Count(in, []byte(":")) < maxMembers {
				t.Fatalf("%q is valid, but: %v", in, err)
			}
			return
		}
		if !json.Valid(in) {
			t.Fatalf("%q is not valid JSON", in)
		}
		require.Equal(t, string(in), string(o.Apply(nil)))
		out := o.Apply(nil, Set("max_tokens", []byte("1")), Delete("a"), Replace("b", []byte("{}")))
		again, err := Parse(out)
		require.NoError(t, err)
		require.Equal(t, "1", string(again.Raw("max_tokens")))
		require.False(t, again.Has("a"))
	})
}

func BenchmarkParse48KB(b *testing.B) {
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("The quick brown fox. ", 48*1024/21) + `"}],"max_tokens":64,"stream":true}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	var o Object
	for b.Loop() {
		if err := o.Reset(body); err != nil {
			b.Fatal(err)
		}
	}
}
