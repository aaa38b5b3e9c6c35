package proxy

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Addresses pairs hosts with ports. The lists must have the same length.
func Addresses(kind string, hosts, ports []string) ([]string, error) {
	if len(hosts) != len(ports) {
		return nil, fmt.Errorf("%d %s hosts and %d ports: the lists must have the same length", len(hosts), kind, len(ports))
	}
	out := make([]string, len(hosts))
	for i, h := range hosts {
		h = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(h), "["), "]")
		out[i] = net.JoinHostPort(h, strings.TrimSpace(ports[i]))
		if err := CheckAddress(out[i]); err != nil {
			return nil, fmt.Errorf("%s %q: %w", kind, out[i], err)
		}
	}
	return out, nil
}

// DecoderList gives each Decoder address its number of ranks: one number for
// all, or one for each; none means 1.
func DecoderList(addrs []string, sizes []string) ([]Decoder, error) {
	if len(sizes) > 1 && len(sizes) != len(addrs) {
		return nil, fmt.Errorf("%d decoders and %d sizes: give one size, or one for each decoder", len(addrs), len(sizes))
	}
	out := make([]Decoder, len(addrs))
	for i, a := range addrs {
		out[i] = Decoder{Addr: a, Ranks: 1}
		if len(sizes) == 0 {
			continue
		}
		size := strings.TrimSpace(sizes[i%len(sizes)])
		n, err := strconv.Atoi(size)
		if err != nil || n < 1 || n > 1024 {
			return nil, fmt.Errorf("decoder %s: %q ranks: give a number between 1 and 1024", a, size)
		}
		out[i].Ranks = n
	}
	return out, nil
}

// between is what stands between two values of a list.
var between = regexp.MustCompile(`\s*,\s*|\s+`)

// JoinLists rewrites arguments in which a list flag is followed by several
// values with spaces between them, as the example proxies take them or within
// one quoted argument, into one value with commas.
func JoinLists(args []string, lists ...string) []string {
	commas := func(value string) string { return between.ReplaceAllString(strings.TrimSpace(value), ",") }
	var out []string
	for i := 0; i < len(args); i++ {
		flag, value, set := strings.Cut(args[i], "=")
		if name, ok := strings.CutPrefix(flag, "--"); !ok || !slices.Contains(lists, name) {
			out = append(out, args[i])
			continue
		}
		if set {
			out = append(out, flag+"="+commas(value))
			continue
		}
		out = append(out, args[i])
		var values []string
		for i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
			i++
			values = append(values, args[i])
		}
		if len(values) > 0 {
			out = append(out, commas(strings.Join(values, " ")))
		}
	}
	return out
}
