package cuda

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"gdrapi/core/cuda/cudatest"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// moves says whether this goroutine comes to another thread, as others take threads for
// themselves.
func moves(rounds int) bool {
	before := unix.Gettid()
	for range rounds {
		release := make(chan bool)
		var ready sync.WaitGroup
		ready.Add(4)
		for range 4 {
			go func() {
				runtime.LockOSThread()
				ready.Done()
				<-release
				runtime.UnlockOSThread()
			}()
		}
		ready.Wait()
		now := unix.Gettid()
		close(release)
		if now != before {
			return true
		}
	}
	return false
}

// The capture mode is exchanged once around a Relaxed, on one thread, and what was is put
// back. If it cannot be exchanged, or the driver has no modes, the calls are made all the
// same, and on one thread: they may change its current context.
func TestCaptureModeIsPutBack(t *testing.T) {
	for _, c := range []struct {
		fails string // the exchange that fails, by the mode that it asks for
		want  string
		line  string
	}{
		{"", "mode 2, unmap, unmap, mode 1", ""},
		{"2", "mode 2, unmap, unmap", ""},
		{"no modes", "unmap, unmap", ""},
		{"1", "mode 2, unmap, unmap, mode 1", "WARN: this thread's stream capture mode stays relaxed: cuThreadExchangeStreamCaptureMode: "},
	} {
		var calls []string
		threads := map[int]bool{}
		d := with(symThreadExchangeStreamCaptureMode, func(mode *int32) uintptr {
			asked := fmt.Sprint(*mode)
			calls = append(calls, "mode "+asked)
			threads[unix.Gettid()] = true
			*mode = 1 // what was before
			if asked == c.fails {
				return uintptr(ErrUnknown)
			}
			return 0
		})
		if c.fails == "no modes" {
			d.fn[symThreadExchangeStreamCaptureMode] = 0
		}
		d.fn[symMemUnmap] = purego.NewCallback(func(addr, size uint64) uintptr {
			calls = append(calls, "unmap")
			threads[unix.Gettid()] = true
			return uintptr(addr - size) // 0
		})
		lines := cudatest.Lines(t, func() {
			require.ErrorIs(t, d.Relaxed(func(in *Driver) error {
				require.NoError(t, in.call(symMemUnmap, 32, 32))
				require.False(t, moves(50), "the mode and the current context are the thread's")
				require.NoError(t, in.Relaxed(func(in *Driver) error { return in.call(symMemUnmap, 32, 32) }))
				return unix.EMLINK
			}), unix.EMLINK)
		})
		require.Equal(t, c.want, strings.Join(calls, ", "))
		require.Contains(t, lines, c.line)
		require.Equal(t, c.line == "", lines == "", lines)
		require.Len(t, threads, 1)
		require.True(t, moves(1000), "afterwards the goroutine has no thread of its own")
	}
}

// A loader that fails is asked again, and one that has loaded is not.
func TestLoader(t *testing.T) {
	if !cudatest.InChild(t) {
		return
	}
	var failure error = unix.EMLINK
	loads := 0
	UseLoader(Loader{Load: func() error { loads++; return failure }, Loaded: func() bool { return false }, Find: loader.Find})
	for n := 1; n <= 2; n++ {
		_, err := Load()
		require.ErrorIs(t, err, unix.EMLINK)
		require.ErrorContains(t, err, "cannot load the CUDA driver")
		require.Equal(t, n, loads)
	}
	_, err := Loaded()
	require.ErrorIs(t, err, unix.ENOTSUP)
	_, err = Alloc(0, 1)
	require.ErrorIs(t, err, unix.EMLINK)
	failure = nil
	d := load1(t)
	_, err = d.Version()
	require.NoError(t, err)
	failure = unix.EMLINK
	for _, load := range []func() (*Driver, error){Load, Loaded} {
		again, err := load()
		require.NoError(t, err)
		require.Same(t, d, again)
	}
	require.Equal(t, 4, loads)
}

// A child that was forked after cuInit is told so, by another errno than an address is.
func TestInitInAForkedChild(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	sim.Run("-cuInit=3@1 init=ENODEV~forked.after.its.parent.initialised.it.*NOT_INITIALIZED -cuInit=100@1 init=ENODEV~NO_DEVICE "+
		"-cuInit=999@1 init=EIO init", map[string]func(string) error{"init": func(string) error { return d.Init() }})
}
