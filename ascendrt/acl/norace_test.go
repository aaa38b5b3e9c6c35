//go:build !race && cgo && linux

package acl

const raceEnabled = false
