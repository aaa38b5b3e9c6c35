//go:build !unix

package builds

// lock does nothing: two processes may build the same libraries at a time.
func lock(string) (unlock func(), err error) { return func() {}, nil }
