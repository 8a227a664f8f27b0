package rm

import (
	"testing"

	"gdrapi/core/backend"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// eachWay calls f with memory for each way, on a machine where no other way confirms it.
func eachWay(t *testing.T, f func(t *testing.T, w *world, of way, a *fakeAlloc)) {
	t.Run(byIPC.String(), func(t *testing.T) {
		w := blind(t)
		f(t, w, byIPC, w.cuda.memAlloc(0, 2*mib))
	})
	t.Run(byExport.String(), func(t *testing.T) {
		w := newWorld(t)
		w.cuda.ipcWord[ipcOffset] = 4096 // or the two would agree
		f(t, w, byExport, w.cuda.vmm(0, false, []uint64{2 * mib}))
	})
	t.Run(byImport.String(), func(t *testing.T) {
		w := blind(t)
		f(t, w, byImport, w.cuda.vmm(0, true, []uint64{2 * mib}))
	})
}

// A way that no other one confirms is tried once on memory of our own, and not on the
// caller's. Then a pin compares and copies nothing.
func TestProofOnOwnMemory(t *testing.T) {
	eachWay(t, func(t *testing.T, w *world, of way, a *fakeAlloc) {
		require.NoError(t, w.pinned(a.start, 4096).Unpin())
		require.Equal(t, right, w.verdict(of))
		require.Zero(t, w.rm.count("ReadBack"), "the caller's bytes are not looked at")
		wrote, mapped := w.rm.count("WriteOut"), w.rm.count("MAP_MEMORY")
		require.Equal(t, 4, wrote)
		w.cuda.written = true
		require.NoError(t, w.pinned(a.start+mib, 4096).Unpin())
		require.Equal(t, wrote, w.rm.count("WriteOut"))
		require.Equal(t, mapped, w.rm.count("MAP_MEMORY"))
		require.Equal(t, 1, w.rm.count("cuMemAlloc")+w.rm.count("cuMemCreate"))
		w.end()
		require.NoError(t, w.pinned(a.start, 4096).Unpin())
		require.Equal(t, wrote, w.rm.count("WriteOut"), "nor by a new client")
		w.end()
	})
}

// A trial that a call ended is not made again: its memory stays.
func TestOwnMemoryIsTriedOnce(t *testing.T) {
	eachWay(t, func(t *testing.T, w *world, of way, a *fakeAlloc) {
		w.rm.fail("WriteOut", 1, errOwn)
		for range 3 {
			require.NoError(t, w.pinned(a.start, 4096).Unpin())
			require.Equal(t, untried, w.verdict(of))
			require.Equal(t, 1, w.rm.count("WriteOut"))
			require.Equal(t, 1, w.rm.count("cuMemAlloc")+w.rm.count("cuMemCreate"))
		}
		w.end()
	})
}

// VMM memory first: the two ways agree on memory of our own, and no byte is needed.
func TestProofByAgreementOnOwnMemory(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.vmm(0, false, []uint64{2 * mib})
	require.NoError(t, w.pinned(a.start, 4096).Unpin())
	require.Equal(t, right, w.verdict(byExport))
	require.Equal(t, right, w.verdict(byIPC))
	require.Equal(t, 1, w.rm.count("cuMemAlloc"))
	require.Zero(t, w.rm.count("WriteOut")+w.rm.count("ReadBack")+w.rm.count("MAP_MEMORY"))
	w.end()
}

// Where no memory is left, the caller's bytes are compared, and a kernel may write them.
func TestProofWithoutMemory(t *testing.T) {
	for _, written := range []bool{false, true} {
		eachWay(t, func(t *testing.T, w *world, of way, a *fakeAlloc) {
			w.cuda.full, w.cuda.written = true, written
			w.cuda.fill(a)
			for i := range uint64(20) {
				require.NoError(t, w.pinned(a.start+i*(gpuPage+300), 4096).Unpin())
			}
			require.Equal(t, untried, w.verdict(of))
			require.NotZero(t, w.rm.count("ReadBack"))
			w.cuda.full = false
			require.NoError(t, w.pinned(a.start, 4096).Unpin())
			require.Equal(t, right, w.verdict(of))
			w.end()
		})
	}
}

// A driver that names another object, or another place in it. Where no memory is left, the
// caller's bytes show it, even if a kernel writes one word of them.
func TestProofThatFails(t *testing.T) {
	for _, c := range []struct {
		full, written, object bool
		want                  verdict
	}{
		{want: wrong}, {object: true, want: wrong},
		{full: true, want: untried}, {full: true, written: true, want: untried}, {full: true, object: true, want: untried},
	} {
		eachWay(t, func(t *testing.T, w *world, of way, a *fakeAlloc) {
			w.cuda.full, w.cuda.written = c.full, c.written
			other := w.cuda.vmm(0, true, []uint64{2 * mib}).parts[0]
			w.cuda.fill(a)
			w.cuda.exportsAs = other
			w.cuda.seen = func(s *Seen) {
				if s.Offset ^= 8192; c.object {
					s.Object, s.Offset = other.object.Handle, s.Offset^8192
				}
			}
			if w.cuda.ipcWord[ipcOffset] = 4096; c.object && of == byIPC {
				w.cuda.ipcWord[ipcOffset] = 0
				w.cuda.ipcWord[ipcObject] = other.object.Handle - a.parts[0].object.Handle
			}
			w.notPinned(a.start, 4096, unix.ENOTSUP, of.String()+" do not lead to the memory")
			require.Equal(t, c.want, w.verdict(of), "%+v", c)
			w.end()
		})
	}
}

// Bytes that someone writes meanwhile may differ in any reads but all.
func TestProofOfBytesThatChange(t *testing.T) {
	for _, wrong := range []int{1, 7, 8} {
		eachWay(t, func(t *testing.T, w *world, of way, a *fakeAlloc) {
			w.cuda.full, w.cuda.wrongReads = true, wrong
			if wrong == 8 {
				w.notPinned(a.start, 4096, unix.ENOTSUP, "do not lead to the memory")
			}
			require.NoError(t, w.pinned(a.start, 4096).Unpin())
			require.Zero(t, w.cuda.wrongReads)
			w.end()
		})
	}
}

// A way that was found wrong stays so, whatever it says afterwards.
func TestWrongStaysWrong(t *testing.T) {
	w := blind(t)
	a := w.cuda.memAlloc(0, 2*mib)
	w.cuda.ipcWord[ipcOffset] = 4096
	w.notPinned(a.start, 4096, unix.ENOTSUP, "IPC handles")
	require.Equal(t, wrong, w.verdict(byIPC))
	w.cuda.ipcWord[ipcOffset] = 0
	w.session.watch = w.cuda.watch
	asked := w.rm.count("cuIpcGetMemHandle")
	for range 3 {
		p := w.pinned(a.start, a.size)
		w.cycle(p)
		require.NoError(t, p.Unpin())
	}
	require.Equal(t, wrong, w.verdict(byIPC))
	require.Equal(t, right, w.verdict(byExport))
	require.Equal(t, asked, w.rm.count("cuIpcGetMemHandle"))
	w.end()
}

// Where two ways differ, the one that our own memory proves wrong is not used, and the
// other one is.
func TestTheOtherWayIsRight(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 2*mib)
	w.cuda.seen = func(s *Seen) { s.Offset ^= 8192 }
	w.notPinned(a.start, 4096, unix.ENOTSUP, "dma-buf exports")
	require.Equal(t, wrong, w.verdict(byExport))
	require.NotEqual(t, wrong, w.verdict(byIPC), "nothing is known of it")
	w.session.watch = nil
	p := w.pinned(a.start, a.size)
	w.cycle(p)
	require.NoError(t, p.Unpin())
	require.Equal(t, right, w.verdict(byIPC))
	w.end()
}

// What is compared of the caller's memory lies in it: its first byte may be in the midst of
// a page, and it may be shorter than a line.
func TestComparedBytesAreTheCallers(t *testing.T) {
	for _, size := range []uint64{1, 20, 63, 64, 65, 700} {
		w := blind(t)
		w.cuda.full = true
		w.cuda.memAlloc(0, 100)
		a := w.cuda.memAlloc(0, size)
		w.cuda.fill(a)
		require.NotZero(t, a.start%hostPage)
		p := w.pinned(a.start, size)
		require.NotZero(t, w.rm.count("ReadBack"))
		require.NoError(t, p.Unpin())
		w.end()
	}
}

// Each GPU has a proof of its own.
func TestProofOfEachGPU(t *testing.T) {
	w := newWorld(t)
	for ordinal := range 2 {
		a := w.cuda.memAlloc(ordinal, 8*mib)
		for range 3 {
			require.NoError(t, w.pinned(a.start, a.size).Unpin())
			require.Equal(t, ordinal+1, w.rm.count("watch"))
		}
	}
	w.end()
}

// Objects side by side whose offsets look like one object's: the driver's bounds tell them
// apart, and each is looked up once.
func TestMappingsOfManyObjects(t *testing.T) {
	for _, which := range [][]int{{0, 0}, {0, 1, 0}, {0, 0, 1, 0, 0}, {0, 1, 2, 1}} {
		w := newWorld(t)
		v := w.cuda.vmm(0, false, []uint64{2 * mib, 4 * mib, 2 * mib}, which...)
		require.NoError(t, w.pinned(w.cuda.memAlloc(0, mib).start, 4096).Unpin())
		watched := w.rm.count("watch")
		p := w.pinned(v.start, v.size)
		require.Len(t, p.extents, len(which))
		require.Equal(t, watched+len(which), w.rm.count("watch"))
		w.cycle(p)
		require.NoError(t, p.Unpin())
		p = w.pinned(v.start+mib, v.size-2*mib)
		w.cycle(p)
		require.NoError(t, p.Unpin())
		w.end()
	}
}

// A call that fails during the proof leaves nothing behind, and the next pin works.
func TestProofWhoseCallsFail(t *testing.T) {
	for _, full := range []bool{false, true} {
		eachWay(t, func(t *testing.T, w *world, of way, a *fakeAlloc) {
			w.cuda.full = full
			require.NoError(t, w.pinned(a.start, 4096).Unpin())
			calls := map[string]int{}
			for _, name := range w.rm.calls {
				calls[name]++
			}
			w.end()
			for name, n := range calls {
				for nth := 1; nth <= n; nth++ {
					eachWay(t, func(t *testing.T, w *world, which way, a *fakeAlloc) {
						if which != of {
							return
						}
						w.cuda.full = full
						w.rm.fail(name, nth, unix.EMLINK)
						if p, err := w.Pin(backend.PinRequest{Addr: a.start, Size: 4096}); err == nil {
							_ = p.Unpin()
						}
						require.NoError(t, w.pinned(a.start, 4096).Unpin(), "%s, call %d", name, nth)
						require.NotEqual(t, wrong, w.verdict(of), "%s, call %d", name, nth)
						if name != "munmap" && name != "RM_FREE" && name != "UNMAP_MEMORY" {
							require.Zero(t, w.held(), "%s, call %d", name, nth)
							opened := w.rm.count("MAP_MEMORY")
							if name == "MAP_MEMORY" {
								opened--
							}
							require.Equal(t, opened, w.rm.count("UNMAP_MEMORY"), "%s, call %d: each window is closed", name, nth)
						}
						_ = w.Close()
					})
				}
			}
		})
	}
}
