package backendtest

import (
	"fmt"
	"os"
	"testing"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/cuda/cudatest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Page is the host's page in bytes.
var Page = uint64(os.Getpagesize())

// Simulated is a backend on the simulated CUDA driver, and what differs between such backends.
type Simulated struct {
	Open       func(testing.TB) backend.Session
	Memory     func(*cudatest.Sim) uint64 // a MiB that it pins
	Attributes map[backend.Attr]int
	Refused    func(*cudatest.Sim) []Refusal // pins, beside those that each backend refuses
	NoTypes    []backend.MappingType         // that a mapping of Memory cannot have
}

// Refusal is a pin that a backend refuses.
type Refusal struct {
	what string
	req  backend.PinRequest
	want unix.Errno
	line string // of the error's text
}

// Refuses is the refusal of a pin of size bytes.
func Refuses(what string, addr, size uint64, want unix.Errno, line string) Refusal {
	return Refusal{what, backend.PinRequest{Addr: addr, Size: size}, want, line}
}

// Test runs what is the same in all backends on CUDA.
func (b Simulated) Test(t *testing.T) {
	t.Run("before cuInit", b.beforeInit)
	t.Run("attributes", func(t *testing.T) {
		cudatest.Need(t)
		Attributes(t, b.Open(t), b.Attributes)
	})
	t.Run("refused pins", b.refusedPins)
	t.Run("refused maps", b.refusedMaps)
	t.Run("an unaligned buffer", b.unaligned)
	t.Run("no descriptors", b.noDescriptors)
}

// Attributes checks all attributes of a session.
func Attributes(t *testing.T, s backend.Session, want map[backend.Attr]int) {
	t.Helper()
	for a := backend.Attr(1); a.IsKnown(); a++ {
		v, err := s.Attribute(a)
		require.NoError(t, err)
		require.Equal(t, want[a], v, "attribute %d", a)
	}
}

func (b Simulated) beforeInit(t *testing.T) {
	if !cudatest.InChild(t) {
		return
	}
	s := b.Open(t)
	major, minor := s.Version()
	require.Equal(t, []int{backend.Major, backend.Minor}, []int{major, minor})
	_, err := s.Pin(backend.PinRequest{Addr: 1 << 20, Size: 4096})
	require.ErrorIs(t, err, unix.EINVAL)
	require.ErrorContains(t, err, "CUDA is not initialised")
	cu, err := cuda.Load()
	require.NoError(t, err)
	_, err = cu.DeviceCount()
	require.ErrorIs(t, err, cuda.ErrNotInitialized, "the backend may not call cuInit")
}

func (b Simulated) refusedPins(t *testing.T) {
	sim := cudatest.Need(t)
	s := b.Open(t)
	refused := append(b.Refused(sim),
		Refuses("CUDA's host memory", sim.HostAlloc(1<<16), 4096, unix.EINVAL, ""),
		Refuses("host memory", uint64(cudatest.Address(&Page)), 8, unix.EINVAL, "no CUDA device pointer"),
		Refuses("no memory", 4096, 4096, unix.EINVAL, "no CUDA device pointer"))
	live, fds := sim.Live(), cudatest.FDs(t)
	for _, c := range refused {
		_, err := s.Pin(c.req)
		require.ErrorIs(t, err, c.want, c.what)
		require.ErrorContains(t, err, c.line, c.what)
		require.Equal(t, live, sim.Live(), c.what)
		require.Equal(t, fds, cudatest.FDs(t), c.what)
	}
}

func (b Simulated) refusedMaps(t *testing.T) {
	sim := cudatest.Need(t)
	p, err := b.Open(t).Pin(backend.PinRequest{Addr: b.Memory(sim), Size: Page})
	require.NoError(t, err)
	for _, want := range b.NoTypes {
		_, _, err := p.Map(Page, want)
		require.ErrorIs(t, err, unix.EINVAL, "type %d", want)
		require.ErrorContains(t, err, fmt.Sprintf("mapping type %d was asked for", want))
	}
	require.NoError(t, p.Unpin())
}

func (b Simulated) unaligned(t *testing.T) {
	sim := cudatest.Need(t)
	addr := b.Memory(sim)
	p, err := b.Open(t).Pin(backend.PinRequest{Addr: addr + Page + 256, Size: Page})
	require.NoError(t, err)
	info, err := p.Info()
	require.NoError(t, err)
	require.Equal(t, backend.Info{VA: addr + Page, MappedSize: 2 * Page, PageSize: uint32(Page)}, info)
	require.NoError(t, p.Unpin())
}

func (b Simulated) noDescriptors(t *testing.T) {
	sim := cudatest.Need(t)
	s, addr := b.Open(t), b.Memory(sim)
	live := sim.Live()
	var err error
	cudatest.WithoutDescriptors(t, func() { _, err = s.Pin(backend.PinRequest{Addr: addr, Size: Page}) })
	require.ErrorIs(t, err, unix.EMFILE)
	require.ErrorContains(t, err, "RLIMIT_NOFILE")
	require.Equal(t, live, sim.Live())
}
