package gdrdrv

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/cuda/cudatest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const buffer = 0x7f1200000000 // a device pointer, aligned to 64 KiB

var _ backend.Backend = Backend{}

func noSync(uint64, uint64) {}

func openFake(t *testing.T, f *fakeDriver) *session {
	s, err := open(f, noSync)
	require.NoError(t, err)
	return s
}

// Numbers and layouts of kmod/gdrdrv_uapi.h, which old binaries have: the fields by their offsets,
// and the size.
func TestABI(t *testing.T) {
	for number, c := range map[uint32]struct {
		code   uint32
		arg    any
		layout string
	}{
		0xC028DA01: {iocPinBuffer, pinBuffer{}, "addr 0, size 8, p2pToken 16, vaSpace 24, _ 28, handle 32, 40"},
		0xC008DA02: {iocUnpinBuffer, unpinBuffer{}, "handle 0, 8"},
		0xC008DA03: {iocGetCBFlag, getCBFlag{}, "handle 0, flag 8, _ 12, 16"},
		0xC008DA04: {iocGetInfo, getInfo{},
			"handle 0, va 8, mappedSize 16, pageSize 24, tscKHz 28, tmCycles 32, mapped 40, wcMapping 44, 48"},
		0xC008DA05: {iocGetInfoV2, getInfoV2{},
			"handle 0, va 8, mappedSize 16, pageSize 24, tscKHz 28, tmCycles 32, mappingType 40, _ 44, 48"},
		0xC008DA06: {iocGetAttr, getAttr{}, "attr 0, value 4, 8"},
		0xC020DA07: {iocPinBufferV2, pinBufferV2{}, "addr 0, size 8, flags 16, _ 20, handle 24, 32"},
		0xC008DA08: {iocReqMappingType, reqMappingType{}, "handle 0, mappingType 8, _ 12, 16"},
		0xC008DAFF: {iocGetVersion, getVersion{}, "driver 0, minAPI 4, 8"},
	} {
		require.Equal(t, number, c.code)
		of := reflect.TypeOf(c.arg)
		layout := ""
		for i := range of.NumField() {
			layout += fmt.Sprintf("%s %d, ", of.Field(i).Name, of.Field(i).Offset)
		}
		require.Equal(t, c.layout, layout+fmt.Sprint(of.Size()), of.Name())
	}
}

func TestOpenChecksTheVersionWindow(t *testing.T) {
	for _, c := range []struct {
		major, minor uint32
		minAPI       version
		refused      string // what the error says
	}{
		{1, 9, 0x20000, "gdrdrv is 1.9, and 2.0 is the oldest"},
		{1, 65535, 0x20000, "gdrdrv is 1.65535, and 2.0 is the oldest"},
		{2, 0, 0x20000, ""},
		{2, 3, 0x20000, ""},
		{2, 6, 0x20000, ""},
		{2, 9, 0x20006, ""},
		{3, 0, 0x20006, ""},
		{2, 9, 0x20007, "gdrdrv 2.9 needs a libgdrapi of 2.7 or later, this is 2.6"},
		{3, 0, 0x30000, "gdrdrv 3.0 needs a libgdrapi of 3.0 or later, this is 2.6"},
	} {
		f := newFake(t, c.major, c.minor)
		f.minAPI = c.minAPI
		s, err := open(f, noSync)
		if c.refused != "" {
			require.ErrorIs(t, err, unix.ENOTSUP, "%v", f)
			require.ErrorContains(t, err, c.refused)
			require.Zero(t, f.live(), "%v", f)
			continue
		}
		require.NoError(t, err, "%v", f)
		major, minor := s.Version()
		require.Equal(t, []int{int(c.major), int(c.minor)}, []int{major, minor})
		require.NoError(t, s.Close())
		require.Zero(t, f.live())
	}
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	f := newFake(t, 2, 6)
	for _, absent := range []unix.Errno{unix.ENOENT, unix.ENXIO, unix.ENODEV} {
		f.fail["open"] = absent
		_, err := open(f, noSync)
		require.ErrorIs(t, err, absent)
		require.ErrorContains(t, err, "modprobe gdrdrv")
	}
	f.fail["open"] = unix.EACCES
	_, err := open(f, noSync)
	require.ErrorIs(t, err, unix.EACCES)
	require.NotContains(t, err.Error(), "modprobe")
	f.fail["own"] = unix.EMFILE
	_, err = open(f, noSync)
	require.ErrorIs(t, err, unix.EMFILE)
	require.Zero(t, f.live(), "the descriptor is closed")
}

// Every version pins, maps, reports and unmaps, by the ioctls that it has.
func TestLifeOfABuffer(t *testing.T) {
	for _, minor := range []uint32{0, 3, 4, 5, 6} {
		f := newFake(t, 2, minor)
		s := openFake(t, f)
		p, err := s.Pin(backend.PinRequest{Addr: buffer, Size: 70000})
		require.NoError(t, err, "%v", f)

		info, err := p.Info()
		require.NoError(t, err)
		require.Equal(t, backend.Info{VA: buffer, MappedSize: 2 << 16, PageSize: 1 << 16, TMCycles: 987654, CyclesPerMS: 2400}, info)

		for range 2 {
			va, got, err := p.Map(2<<16, backend.None)
			require.NoError(t, err, "%v", f)
			require.NotZero(t, va)
			require.Equal(t, backend.WC, got)
			_, _, err = p.Map(2<<16, backend.WC)
			require.ErrorIs(t, err, unix.EINVAL, "mapped already")
			require.NoError(t, unmap(p))
			require.ErrorIs(t, unmap(p), unix.EINVAL)
		}

		flag, err := p.CallbackFlag()
		require.NoError(t, err)
		require.Zero(t, flag)
		f.buffers[p.(*pin).handle].revoked = true
		flag, err = p.CallbackFlag()
		require.NoError(t, err)
		require.Equal(t, 1, flag)

		require.NoError(t, p.Unpin())
		require.Equal(t, 1, f.live(), "the session's descriptor alone")
		require.ErrorIs(t, p.Unpin(), unix.EINVAL)
		_, err = p.Info()
		require.ErrorIs(t, err, unix.EINVAL)
		require.NoError(t, s.Close())
		require.Zero(t, f.live())

		pinned := "PIN_BUFFER"
		if minor >= 5 {
			pinned = "PIN_BUFFER_V2"
		}
		require.Contains(t, f.calls, pinned, "%v", f)
		require.Equal(t, minor >= 4, slices.Contains(f.calls, "GET_INFO_V2"), "%v", f)
		require.Equal(t, minor < 4, slices.Contains(f.calls, "GET_INFO"), "%v", f)
	}
}

// The driver drops a mapping when the memory is freed.
func TestRevokedWhileMapping(t *testing.T) {
	for i, minor := range []uint32{3, 6, 3, 6} {
		f := newFake(t, 2, minor)
		f.persistent, f.revokeAtMmap = false, true
		f.defaultMap = uint32(1 + i/2) // write-combined, or cached
		s := openFake(t, f)
		p, err := s.Pin(backend.PinRequest{Addr: buffer, Size: 65536})
		require.NoError(t, err)
		_, _, err = p.Map(65536, backend.None)
		require.ErrorIs(t, err, unix.EAGAIN)
		require.Empty(t, f.mappings, "nothing is left mapped")
		require.NoError(t, p.Unpin())
		require.NoError(t, s.Close())
	}
}

// The host closed the descriptor, and its number is nothing, or another open of the driver.
// No call reaches that one's buffers, and gdr_close leaves it open. A new gdr_open works.
func TestHostClosesTheDescriptor(t *testing.T) {
	for _, again := range []bool{false, true} {
		for _, mapped := range []bool{false, true} {
			f := newFake(t, 2, 6)
			s := openFake(t, f)
			p, err := s.Pin(backend.PinRequest{Addr: buffer, Size: 65536})
			require.NoError(t, err)
			if mapped {
				_, _, err = p.Map(65536, backend.None)
				require.NoError(t, err)
			}
			f.hostCloses(s.fd, again)
			before := len(f.calls)
			_, err = s.Pin(backend.PinRequest{Addr: buffer, Size: 65536})
			require.ErrorContains(t, err, "gdr_open")
			_, attribute := s.Attribute(backend.AttrForcePCIe)
			_, info := p.Info()
			_, flag := p.CallbackFlag()
			for _, err := range []error{err, attribute, info, flag} {
				require.ErrorIs(t, err, unix.EBADF)
			}
			if mapped {
				require.Len(t, f.calls, before)
				require.NoError(t, unmap(p), "the mapping is the process's")
				before++
			}
			_, _, err = p.Map(65536, backend.None)
			require.ErrorIs(t, err, unix.EBADF)
			require.ErrorIs(t, p.Unpin(), unix.EBADF)
			require.NoError(t, s.Close())
			require.Len(t, f.calls, before)
			require.Empty(t, f.mappings)

			s = openFake(t, f)
			p, err = s.Pin(backend.PinRequest{Addr: buffer, Size: 65536})
			require.NoError(t, err)
			require.NoError(t, p.Unpin())
			require.NoError(t, s.Close())
		}
	}
}

func TestPinFlagsAndTokens(t *testing.T) {
	for _, c := range []struct {
		what       string
		minor      uint32
		persistent bool
		forcePCIe  bool
		req        backend.PinRequest
		want       error
	}{
		{"FORCE_PCIE", 6, true, true, backend.PinRequest{Flags: 1}, nil},
		{"FORCE_PCIE, not in this NVIDIA driver", 6, true, false, backend.PinRequest{Flags: 1}, unix.EINVAL},
		{"FORCE_PCIE, old gdrdrv", 4, true, true, backend.PinRequest{Flags: 1}, unix.EINVAL},
		{"flags 0, old gdrdrv", 4, true, true, backend.PinRequest{}, nil},
		{"tokens", 6, false, true, backend.PinRequest{Token: 7, VASpace: 9}, nil},
		{"tokens, persistent", 6, true, true, backend.PinRequest{Token: 7, VASpace: 9}, nil},
		{"tokens, old gdrdrv", 4, false, true, backend.PinRequest{Token: 7, VASpace: 9}, nil},
		{"tokens, persistent, old gdrdrv", 4, true, true, backend.PinRequest{Token: 7, VASpace: 9}, unix.EINVAL},
	} {
		f := newFake(t, 2, c.minor)
		f.persistent, f.forcePCIe = c.persistent, c.forcePCIe
		s := openFake(t, f)
		c.req.Addr, c.req.Size = buffer, 100
		_, err := s.Pin(c.req)
		if c.want == nil {
			require.NoError(t, err, c.what)
			require.Len(t, f.buffers, 1, c.what)
			if c.minor < 5 {
				require.Equal(t, c.req.Token, f.token, c.what)
				require.Equal(t, c.req.VASpace, f.space, c.what)
			}
		} else {
			require.ErrorIs(t, err, c.want, c.what)
			require.Empty(t, f.buffers, c.what)
		}
	}
}

func TestMappingTypes(t *testing.T) {
	for _, c := range []struct {
		what       string
		minor      uint32
		defaultMap uint32
		canMap     []uint32
		want       backend.MappingType
		got        backend.MappingType
		err        error
	}{
		{"own choice, cached", 6, 2, []uint32{0, 1, 2}, backend.None, backend.Caching, nil},
		{"own choice, device", 6, 3, []uint32{0, 1, 3}, backend.None, backend.Device, nil},
		{"WC asked for", 6, 2, []uint32{0, 1, 2}, backend.WC, backend.WC, nil},
		{"2.5 can be asked", 5, 2, []uint32{0, 1, 2}, backend.WC, backend.WC, nil},
		{"unsupported", 6, 1, []uint32{0, 1}, backend.Caching, 0, unix.EOPNOTSUPP},
		{"2.4 cannot be asked, has it", 4, 1, nil, backend.WC, backend.WC, nil},
		{"2.4 cannot be asked, lacks it", 4, 1, nil, backend.Caching, 0, unix.EOPNOTSUPP},
		{"2.3 cached", 3, 2, nil, backend.None, backend.Caching, nil},
		{"2.3 cannot be asked, lacks it", 3, 2, nil, backend.WC, 0, unix.EOPNOTSUPP},
	} {
		f := newFake(t, 2, c.minor)
		f.defaultMap, f.canMap = c.defaultMap, c.canMap
		p, err := openFake(t, f).Pin(backend.PinRequest{Addr: buffer, Size: 65536})
		require.NoError(t, err, c.what)
		_, got, err := p.Map(65536, c.want)
		if c.err != nil {
			require.ErrorIs(t, err, c.err, c.what)
			if c.minor < 5 {
				require.ErrorContains(t, err, fmt.Sprintf("type %d was asked for, gdrdrv gave type %d", c.want, c.defaultMap))
			}
			require.Empty(t, f.mappings, c.what)
			continue
		}
		require.NoError(t, err, c.what)
		require.Equal(t, c.got, got, c.what)
	}
}

// A requested type does not apply to later mappings.
func TestRequestedTypeIsTakenBack(t *testing.T) {
	f := newFake(t, 2, 6)
	f.defaultMap, f.canMap = 2, []uint32{0, 1, 2}
	p, err := openFake(t, f).Pin(backend.PinRequest{Addr: buffer, Size: 65536})
	require.NoError(t, err)
	for _, c := range []struct{ want, got backend.MappingType }{
		{backend.WC, backend.WC}, {backend.None, backend.Caching}, {backend.WC, backend.WC}, {backend.WC, backend.WC},
	} {
		_, got, err := p.Map(65536, c.want)
		require.NoError(t, err)
		require.Equal(t, c.got, got)
		require.NoError(t, unmap(p))
	}
	require.Equal(t, 3, strings.Count(strings.Join(f.calls, " "), "REQ_MAPPING_TYPE"), "one for each change")

	// A request that fails is made again.
	_, _, err = p.Map(65536, backend.None)
	require.NoError(t, err)
	require.NoError(t, unmap(p))
	f.fail["REQ_MAPPING_TYPE"] = unix.EMLINK
	_, _, err = p.Map(65536, backend.WC)
	require.ErrorIs(t, err, unix.EMLINK)
	_, got, err := p.Map(65536, backend.WC)
	require.NoError(t, err)
	require.Equal(t, backend.WC, got)
}

func TestAttributes(t *testing.T) {
	for _, c := range []struct {
		minor                 uint32
		persistent, forcePCIe bool
		want                  [2]int
	}{
		{6, true, true, [2]int{1, 1}},
		{5, true, false, [2]int{1, 0}},
		{6, false, false, [2]int{0, 0}},
		{4, true, true, [2]int{0, 0}},
		{0, true, true, [2]int{0, 0}},
	} {
		f := newFake(t, 2, c.minor)
		f.persistent, f.forcePCIe = c.persistent, c.forcePCIe
		s := openFake(t, f)
		for a, want := range map[backend.Attr]int{backend.AttrPersistentMapping: c.want[0], backend.AttrForcePCIe: c.want[1], backend.AttrDMABufMmap: 0} {
			v, err := s.Attribute(a)
			require.NoError(t, err)
			require.Equal(t, want, v, "attribute %d", a)
		}
	}
}

// Each call on the way fails once. The caller gets the errno, and after the session is
// closed nothing is left.
func TestEveryCallFailsOnce(t *testing.T) {
	life := func(f *fakeDriver) error {
		s, err := open(f, noSync)
		if err != nil {
			return err
		}
		defer s.Close()
		_, err = s.Attribute(backend.AttrPersistentMapping)
		if err != nil {
			return err
		}
		p, err := s.Pin(backend.PinRequest{Addr: buffer, Size: 65536})
		if err != nil {
			return err
		}
		_, err = p.Info()
		if err == nil {
			_, err = p.CallbackFlag()
		}
		if err == nil {
			_, _, err = p.Map(65536, backend.WC)
		}
		if p.(*pin).va != 0 {
			if e := unmap(p); e != nil {
				err = errors.Join(err, e, unmap(p))
			}
		}
		if e := p.Unpin(); e != nil {
			err = errors.Join(err, e, p.Unpin())
		}
		return err
	}
	for _, minor := range []uint32{3, 4, 5, 6} {
		clean := newFake(t, 2, minor)
		require.NoError(t, life(clean))
		slices.Sort(clean.calls)
		calls := slices.Compact(clean.calls)
		require.Greater(t, len(calls), 6)
		for _, name := range calls {
			f := newFake(t, 2, minor)
			f.fail[name] = unix.EMLINK // the library never returns this errno by itself
			err := life(f)
			if name != "close" {
				require.ErrorIs(t, err, unix.EMLINK, "%v: %s", f, name)
			}
			require.Zero(t, f.live(), "%v: %s", f, name)
		}
	}
}

// A pin calls CUDA only to set SYNC_MEMOPS on the caller's own bytes, if it has some.
func TestSyncMemopsOfOwnBytes(t *testing.T) {
	sim := cudatest.Need(t)
	addr := sim.MemAlloc(0, 2<<20)
	var asked [][2]uint64
	s, err := open(newFake(t, 2, 6), func(addr, size uint64) {
		asked = append(asked, [2]uint64{addr, size})
		syncMemops(addr, size)
	})
	require.NoError(t, err)
	for _, c := range []struct {
		skip, tail uint64
		own        [][2]uint64
	}{
		{1 << 17, 0, nil},
		{0, 1 << 17, nil},
		{1 << 16, 1 << 16, nil},
		{8, 12, [][2]uint64{{addr + 8, 1<<17 - 20}}},
		{0, 0, [][2]uint64{{addr, 1 << 17}}},
	} {
		asked = nil
		sim.Called()
		p, err := s.Pin(backend.PinRequest{Addr: addr, Size: 1 << 17, Skip: c.skip, Tail: c.tail})
		require.NoError(t, err)
		require.Equal(t, c.own, asked)
		if called := sim.Called(); c.own == nil {
			require.Empty(t, called)
		} else {
			require.Contains(t, called, "cuPointerSetAttribute")
		}
		require.NoError(t, p.Unpin())
	}

	asked = nil
	_, err = s.Pin(backend.PinRequest{Addr: 0, Size: 8})
	require.ErrorIs(t, err, unix.EINVAL)
	require.Empty(t, asked, "for a buffer that does not pin")

	// The pin is good if the attribute cannot be set.
	sim.Fail("cuPointerSetAttribute", int(cuda.ErrUnknown), 1)
	p, err := s.Pin(backend.PinRequest{Addr: addr, Size: 8})
	require.NoError(t, err)
	require.NoError(t, p.Unpin())
}
