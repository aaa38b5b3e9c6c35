package publish

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"
)

// HashForm is the form of block hashes in events.
type HashForm uint8

const (
	// ShortHashes are the low 64 bits of the hash as a number. It is vLLM's default.
	ShortHashes HashForm = iota
	// WholeHashes are the bytes of the hash.
	WholeHashes
)

// EventForm is the form of an event in a batch.
type EventForm uint8

const (
	// EventMaps are maps with a key "type", without the fields that have their default.
	EventMaps EventForm = iota
	// EventArrays are arrays that begin with the type, as older subscribers read them.
	EventArrays
)

// Attach says which side opens the connections of the PUB socket, in ZeroMQ's words.
type Attach uint8

const (
	// Bind: the publisher listens at Config.Endpoint, and subscribers connect. It is the default.
	Bind Attach = iota
	// Connect: a subscriber listens at Config.Endpoint. The publisher connects to
	// it, and again whenever the connection is lost, until Close.
	Connect
)

// Config describes a publisher. The zero value listens where vLLM does.
type Config struct {
	// Endpoint is where the PUB socket listens, or what it connects to; "" means
	// tcp://*:5557. To listen at port 0 lets the system choose.
	Endpoint string
	// Attach chooses between the two.
	Attach Attach
	// Replay is where the ROUTER socket listens; "" means that there is no replay.
	Replay string
	// Topic is the first frame of every message.
	Topic string
	// Rank is the data-parallel rank. It stands in every batch and is added to the ports.
	Rank int
	// Queue is the number of batches that may wait to be sent; 0 means 100,000.
	Queue int
	// HighWater is the number of batches that may wait for one subscriber; 0 means 100,000.
	HighWater int
	// Buffer is the number of batches that replay can give; 0 means 10,000.
	Buffer int
	// Hashes is the form of block hashes.
	Hashes HashForm
	// Events is the form of events.
	Events EventForm
	// Linger is how long Close waits until subscribers have taken what is queued; 0 means one second.
	Linger time.Duration
	// Now gives the time stamps; nil means time.Now.
	Now func() time.Time
	// Log takes refused handshakes and the like; nil means silence.
	Log *slog.Logger
}

const (
	defaultEndpoint = "tcp://*:5557"
	defaultQueue    = 100_000
	defaultBuffer   = 10_000
)

func (c *Config) setDefaults() {
	if c.Endpoint == "" {
		c.Endpoint = defaultEndpoint
	}
	for _, d := range []struct {
		field *int
		value int
	}{{&c.Queue, defaultQueue}, {&c.HighWater, defaultQueue}, {&c.Buffer, defaultBuffer}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Linger == 0 {
		c.Linger = time.Second
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// Validate reports every fault of the configuration, joined.
func (c *Config) Validate() error {
	var errs []error
	for _, d := range []struct {
		name  string
		value int
	}{{"Rank", c.Rank}, {"Queue", c.Queue}, {"HighWater", c.HighWater}, {"Buffer", c.Buffer}} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("publish: %s is %d, must not be negative", d.name, d.value))
		}
	}
	if c.Linger < 0 {
		errs = append(errs, fmt.Errorf("publish: Linger is %s, must not be negative", c.Linger))
	}
	if c.Hashes > WholeHashes {
		errs = append(errs, fmt.Errorf("publish: unknown hash form %d", c.Hashes))
	}
	if c.Events > EventArrays {
		errs = append(errs, fmt.Errorf("publish: unknown event form %d", c.Events))
	}
	if c.Attach > Connect {
		errs = append(errs, fmt.Errorf("publish: unknown way to attach %d", c.Attach))
	}
	for _, e := range []struct {
		endpoint string
		attach   Attach
	}{{cmp.Or(c.Endpoint, defaultEndpoint), c.Attach}, {c.Replay, Bind}} {
		if e.endpoint == "" {
			continue
		}
		addr, err := address(e.endpoint, c.Rank)
		if err == nil && e.attach == Connect && (addr[0] == ':' || strings.HasSuffix(addr, ":0")) {
			err = fmt.Errorf("publish: endpoint %q names no host and port to connect to", e.endpoint)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// address returns the TCP address of an endpoint for a rank: "*" is every
// interface, and the rank is added to the port unless that is 0.
func address(endpoint string, rank int) (string, error) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", fmt.Errorf("publish: endpoint %q is not tcp://host:port", endpoint)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return "", fmt.Errorf("publish: endpoint %q: %w", endpoint, err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", fmt.Errorf("publish: endpoint %q: %w", endpoint, err)
	}
	if n != 0 {
		if n += uint64(rank); n > 65535 {
			return "", fmt.Errorf("publish: endpoint %q: no port is left for rank %d", endpoint, rank)
		}
	}
	if host == "*" {
		host = ""
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}
