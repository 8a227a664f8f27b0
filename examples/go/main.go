// SPDX-License-Identifier: MIT

// Command go writes and reads GPU memory from Go, without cgo:
//
//	CGO_ENABLED=0 go run ./examples/go
package main

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"gdrapi/core"

	"golang.org/x/sys/unix"
)

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Print(err)
		if errors.Is(err, unix.ENODEV) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

func run() error {
	d, err := core.Open(core.Options{Backend: os.Getenv("GDRCOPY_BACKEND")})
	if err != nil {
		return err
	}
	defer d.Close()

	// Memory of this package. Memory of cuMemAlloc is as good: Map takes its address.
	const size = 1 << 20
	mem, err := d.Alloc(0, size)
	if err != nil {
		return err
	}
	m, err := d.Map(mem.Addr(), size)
	if err != nil {
		return err
	}
	defer m.Close()

	want := []byte("written by Go")
	if _, err := m.WriteAt(want, 4096); err != nil {
		return err
	}
	got := make([]byte, len(want))
	if _, err := m.ReadAt(got, 4096); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("read %q, not %q", got, want)
	}
	fmt.Printf("GPU memory at %#x: %s\n", mem.Addr()+4096, got)

	for _, n := range []int{8, 4096, 65536} {
		p := make([]byte, n)
		write, err := each(func() error { _, err := m.WriteAt(p, 0); return err })
		if err != nil {
			return err
		}
		read, err := each(func() error { _, err := m.ReadAt(p, 0); return err })
		if err != nil {
			return err
		}
		fmt.Printf("%5d bytes: a write takes %v, a read %v\n", n, write, read)
	}
	return nil
}

// each is the time of one of many calls of f.
func each(f func() error) (time.Duration, error) {
	const calls = 1000
	start := time.Now()
	for range calls {
		if err := f(); err != nil {
			return 0, err
		}
	}
	return time.Since(start) / calls, nil
}
