package nats

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sluice-serving/sluice/proxy"
)

// openLimit bounds how long the bucket may take to open.
const openLimit = 10 * time.Second

// OpenStore opens a Store from a URL: nats://[user:password@]host:port/bucket,
// or tls:// for TLS, with ?server=host:port for each further server, ?replicas=3
// for a bucket that survives one of them, and ?creds=file for a credentials
// file. Without a path the bucket is sluice-sessions.
func OpenStore(ctx context.Context, u *url.URL, ttl time.Duration) (proxy.Store, io.Closer, error) {
	query := u.Query()
	replicas := 1
	if text := query.Get("replicas"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 5 {
			return nil, nil, fmt.Errorf("%q replicas: give a number between 1 and 5", text)
		}
		replicas = n
	}
	bucket := strings.Trim(u.Path, "/")
	if bucket == "" {
		bucket = "sluice-sessions"
	}
	var servers []string
	for _, host := range append([]string{u.Host}, query["server"]...) {
		servers = append(servers, (&url.URL{Scheme: u.Scheme, User: u.User, Host: host}).String())
	}
	options := []nats.Option{nats.Name("sluice proxy"), nats.MaxReconnects(-1)}
	if file := query.Get("creds"); file != "" {
		options = append(options, nats.UserCredentials(file))
	}
	conn, err := nats.Connect(strings.Join(servers, ","), options...)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	s, err := Open(ctx, conn, bucket, ttl, replicas)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return s, closer{conn}, nil
}

type closer struct{ conn *nats.Conn }

// Close implements io.Closer.
func (c closer) Close() error {
	c.conn.Close()
	return nil
}
