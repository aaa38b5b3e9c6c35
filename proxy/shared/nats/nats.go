// Package nats keeps the owners of sessions, which the replicas of a proxy
// share, in a key-value bucket of NATS JetStream.
//
// A Store may be used from many goroutines. It does not close the connection
// that it is given.
package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sluice-serving/sluice/proxy"
)

// Store is a bucket with a value per session.
type Store struct{ bucket jetstream.KeyValue }

var _ proxy.Store = (*Store)(nil)

// Open makes the bucket, or takes the one of that name; its values are
// forgotten ttl after they were written last.
func Open(ctx context.Context, conn *nats.Conn, bucket string, ttl time.Duration, replicas int) (*Store, error) {
	if ttl < time.Second {
		return nil, fmt.Errorf("a time to live of %v: give at least a second", ttl)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	kv, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: bucket, Description: "owners of sessions", TTL: ttl, History: 1, Replicas: max(replicas, 1), Storage: jetstream.FileStorage,
	})
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", bucket, err)
	}
	return &Store{bucket: kv}, nil
}

// Get implements proxy.Store.
func (s *Store) Get(ctx context.Context, key string) ([]byte, bool, error) {
	entry, err := s.bucket.Get(ctx, key)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	return entry.Value(), true, nil
}

// createTries bounds how often a key is created that others create and delete
// at the same time.
const createTries = 5

// Create implements proxy.Store.
func (s *Store) Create(ctx context.Context, key string, value []byte) ([]byte, bool, error) {
	for range createTries {
		_, err := s.bucket.Create(ctx, key, value)
		if err == nil {
			return nil, true, nil
		}
		if !errors.Is(err, jetstream.ErrKeyExists) {
			return nil, false, err
		}
		held, ok, err := s.Get(ctx, key)
		if err != nil || ok {
			return held, false, err
		}
	}
	return nil, false, fmt.Errorf("key %s comes and goes", key)
}

// Put implements proxy.Store.
func (s *Store) Put(ctx context.Context, key string, value []byte) error {
	_, err := s.bucket.Put(ctx, key, value)
	return err
}

// Delete implements proxy.Store. It leaves nothing of the key's history.
func (s *Store) Delete(ctx context.Context, key string) error {
	return s.bucket.Purge(ctx, key)
}
