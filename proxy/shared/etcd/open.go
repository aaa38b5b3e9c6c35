package etcd

import (
	"context"
	"crypto/tls"
	"io"
	"net/url"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/sluice-serving/sluice/proxy"
)

// client connects as a URL says: etcd://[user:password@]host:port/prefix, or
// etcds:// for TLS, with ?endpoint=host:port for each further member.
func client(ctx context.Context, u *url.URL) (*clientv3.Client, string, error) {
	cfg := clientv3.Config{
		Endpoints: append([]string{u.Host}, u.Query()["endpoint"]...), Context: ctx, DialTimeout: 5 * time.Second, DialKeepAliveTime: 10 * time.Second,
		DialKeepAliveTimeout: 5 * time.Second, Logger: zap.NewNop(),
	}
	if u.Scheme == "etcds" {
		cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if u.User != nil {
		cfg.Username = u.User.Username()
		cfg.Password, _ = u.User.Password()
	}
	c, err := clientv3.New(cfg)
	return c, strings.Trim(u.Path, "/"), err
}

// OpenStore opens a Store from a URL; without a path its prefix is sluice/sessions.
func OpenStore(ctx context.Context, u *url.URL, ttl time.Duration) (proxy.Store, io.Closer, error) {
	c, prefix, err := client(context.WithoutCancel(ctx), u) // requests that end at shutdown still use it
	if err != nil {
		return nil, nil, err
	}
	if prefix == "" {
		prefix = "sluice/sessions"
	}
	s, err := NewStore(c, prefix, ttl)
	if err != nil {
		return nil, nil, closing(c, err)
	}
	return s, c, nil
}

// OpenMembership opens a Membership from a URL; without a path its prefix is
// sluice/instances.
func OpenMembership(ctx context.Context, u *url.URL) (proxy.Membership, io.Closer, error) {
	c, prefix, err := client(context.WithoutCancel(ctx), u)
	if err != nil {
		return nil, nil, err
	}
	if prefix == "" {
		prefix = "sluice/instances"
	}
	return NewMembership(c, prefix), c, nil
}

func closing(c io.Closer, err error) error {
	_ = c.Close() // it was never used
	return err
}
