//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "measure: processor time and memory of other processes are read as Linux tells them; it runs nowhere else")
	os.Exit(2)
}
