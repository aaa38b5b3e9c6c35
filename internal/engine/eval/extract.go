// Package eval asks questions with a known numeric answer of an OpenAI endpoint
// and counts the right answers, in the line format of GSM8K: one JSON object per
// line with "question" and "answer", the latter a solution that ends with
// "#### " and the number.
//
// Goroutines: Run starts as many as Options.Concurrency, and ends them.
package eval

import (
	"regexp"
	"strings"
)

// numeral is a number as people write it: a sign, a dollar sign on either side of
// it, digits with separators, perhaps none before the point.
const numeral = `(?:-?\$?|\$-)(?:[0-9][0-9.,]*|\.[0-9]+)`

var (
	marked = regexp.MustCompile(`####\s*(` + numeral + `)`)
	number = regexp.MustCompile(numeral)
)

// Strict is the number behind the first "####" of an answer that has one.
func Strict(answer string) (string, bool) {
	m := marked.FindStringSubmatch(answer)
	if m == nil {
		return "", false
	}
	return plain(m[1]), true
}

// Flexible is the last number of an answer, wherever it stands.
func Flexible(answer string) (string, bool) {
	all := number.FindAllString(answer, -1)
	if len(all) == 0 {
		return "", false
	}
	return plain(all[len(all)-1]), true
}

// plain is a number without currency sign, thousands separators, a full stop
// behind it, and zeros that change nothing.
func plain(s string) string {
	s = strings.NewReplacer("$", "", ",", "").Replace(s)
	s = strings.TrimRight(s, ".")
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	if s = strings.TrimLeft(s, "0"); s == "" || s[0] == '.' {
		s = "0" + s
	}
	if s == "0" {
		return s
	}
	return sign + s
}
