package proxy

import (
	"fmt"
	"net"
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

// JoinLists rewrites arguments in which a list flag is followed by several
// separate values, as the example proxies take them, into one value with
// commas.
func JoinLists(args []string, lists ...string) []string {
	isList := func(arg string) bool {
		for _, l := range lists {
			if arg == "--"+l {
				return true
			}
		}
		return false
	}
	var out []string
	for i := 0; i < len(args); i++ {
		out = append(out, args[i])
		if !isList(args[i]) {
			continue
		}
		var values []string
		for i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
			i++
			values = append(values, args[i])
		}
		if len(values) > 0 {
			out = append(out, strings.Join(values, ","))
		}
	}
	return out
}
