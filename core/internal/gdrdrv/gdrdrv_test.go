package gdrdrv

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"gdrapi/core/backend"
	"gdrapi/core/cuda/cudatest"
	"gdrapi/core/internal/scripttest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const buffer = 0x7f1200000000 // a device pointer, aligned to 64 KiB

var _ backend.Backend = Backend{}

func noSync(uint64, uint64) {}

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

var mappingTypes = map[string]backend.MappingType{"": backend.None, "WC": backend.WC, "cached": backend.Caching, "device": backend.Device}

// run runs a script on a driver, a session and its last pin, of 65536 bytes. A driver's call fails once.
func run(t *testing.T, script string) {
	var f *fakeDriver
	var s *session
	var p backend.Pin
	var got backend.MappingType
	before := 0
	parse := func(text string) version {
		var major, minor uint32
		_, err := fmt.Sscanf(text, "%d.%d", &major, &minor)
		require.NoError(t, err)
		return version(major<<16 | minor)
	}
	equal := func(what func() any) func(string) error {
		return func(want string) error { require.Equal(t, want, fmt.Sprint(what()), script); return nil }
	}
	set := func(do func(a string)) func(string) error { return func(a string) error { do(a); return nil } }
	scripttest.Run(t, script, map[string]func(string) error{
		"gdrdrv":    set(func(a string) { f = newFake(t, parse(a)) }),
		"needs":     set(func(a string) { f.minAPI = parse(a) }),
		"transient": set(func(string) { f.persistent = false }),
		"noPCIe":    set(func(string) { f.forcePCIe = false }),
		"revokes":   set(func(string) { f.revokeAtMmap = true }),
		"revoked":   set(func(string) { f.buffers[p.(*pin).handle].revoked = true }),
		"has": set(func(list string) { // what it maps by itself, and what it may be asked for
			f.canMap = []uint32{0}
			for i, name := range strings.Split(list, ",") {
				if f.canMap = append(f.canMap, uint32(mappingTypes[name])); i == 0 {
					f.defaultMap = f.canMap[1]
				}
			}
		}),
		"hostCloses": set(func(again string) { f.hostCloses(s.fd, again != ""); before = len(f.calls) }),
		"open":       func(string) (err error) { s, err = open(f, noSync); return err },
		"close":      func(string) error { return s.Close() },
		"pin": func(how string) error {
			req := backend.PinRequest{Addr: buffer, Size: 65536}
			if how == "PCIe" {
				req.Flags = 1
			} else if how == "token" {
				req.Token, req.VASpace = 7, 9
			}
			pinned, err := s.Pin(req)
			if err == nil {
				p = pinned
			}
			return err
		},
		"info": func(string) error {
			info, err := p.Info()
			require.True(t, err != nil || info == backend.Info{VA: buffer, MappedSize: 1 << 16, PageSize: 1 << 16, TMCycles: 987654, CyclesPerMS: 2400})
			return err
		},
		"flag": func(want string) error {
			v, err := p.CallbackFlag()
			require.True(t, err != nil || want == fmt.Sprint(v), script)
			return err
		},
		"map":       func(want string) (err error) { _, got, err = p.Map(65536, mappingTypes[want]); return err },
		"got":       func(want string) error { require.Equal(t, mappingTypes[want], got, script); return nil },
		"unmap":     func(string) error { return unmap(p) },
		"unpin":     func(string) error { return p.Unpin() },
		"attribute": func(string) error { _, err := s.Attribute(backend.AttrForcePCIe); return err },
		"attributes": equal(func() any {
			var list []int
			for _, a := range []backend.Attr{backend.AttrPersistentMapping, backend.AttrForcePCIe, backend.AttrDMABufMmap} {
				v, err := s.Attribute(a)
				require.NoError(t, err)
				list = append(list, v)
			}
			return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ","), "[]")
		}),
		"version":  equal(func() any { return fmt.Sprint(s.driver.major(), ".", s.driver.minor()) }),
		"tokens":   equal(func() any { return fmt.Sprint(f.token, ",", f.space) }),
		"live":     equal(func() any { return f.live() }),
		"mappings": equal(func() any { return len(f.mappings) }),
		"since":    equal(func() any { return len(f.calls) - before }), // calls since the host has closed
		"asks":     equal(func() any { return strings.Count(strings.Join(f.calls, " "), "REQ_MAPPING_TYPE") }),
		"calls":    set(func(name string) { require.Contains(t, f.calls, name, script) }),
		"not":      set(func(name string) { require.NotContains(t, f.calls, name, script) }),
	}, func(call, errno string) {
		f.fail[call] = map[string]unix.Errno{"ENOENT": unix.ENOENT, "ENXIO": unix.ENXIO, "ENODEV": unix.ENODEV,
			"EACCES": unix.EACCES, "EMFILE": unix.EMFILE, "EMLINK": unix.EMLINK}[errno]
	})
}

// A buffer's life, by the calls that the version has.
const life = " open version:2.%d pin info map got:WC map:WC=EINVAL unmap unmap=EINVAL map unmap flag:0 revoked flag:1 " +
	"unpin live:1 unpin=EINVAL info=EINVAL close live:0"

func TestScripts(t *testing.T) {
	for _, script := range []string{
		// The versions that fit.
		"gdrdrv:1.9 open=ENOTSUP~gdrdrv.is.1.9,.and.2.0.is.the.oldest live:0",
		"gdrdrv:2.9 needs:2.6 open version:2.9 close live:0",
		"gdrdrv:2.9 needs:2.7 open=ENOTSUP~gdrdrv.2.9.needs.a.libgdrapi.of.2.7.or.later,.this.is.2.6 live:0",
		"gdrdrv:3.0 needs:3.0 open=ENOTSUP~gdrdrv.3.0.needs.a.libgdrapi.of.3.0 live:0",
		"gdrdrv:2.6 -open=ENOENT open=ENOENT~modprobe -open=ENXIO open=ENXIO~modprobe -open=ENODEV open=ENODEV~modprobe " +
			"-open=EACCES open=EACCES~^open./dev/gdrdrv:.permission -own=EMFILE open=EMFILE live:0",
		"gdrdrv:2.0" + fmt.Sprintf(life, 0) + " calls:PIN_BUFFER calls:GET_INFO not:GET_INFO_V2",
		"gdrdrv:2.3" + fmt.Sprintf(life, 3) + " calls:PIN_BUFFER calls:GET_INFO not:GET_INFO_V2",
		"gdrdrv:2.4" + fmt.Sprintf(life, 4) + " calls:PIN_BUFFER calls:GET_INFO_V2 not:GET_INFO",
		"gdrdrv:2.5" + fmt.Sprintf(life, 5) + " calls:PIN_BUFFER_V2 calls:GET_INFO_V2 not:GET_INFO",
		// Each call fails once.
		"gdrdrv:2.6 -GET_VERSION=EMLINK open=EMLINK live:0 open -GET_ATTR=EMLINK attribute=EMLINK -PIN_BUFFER_V2=EMLINK pin=EMLINK pin " +
			"-GET_INFO_V2=EMLINK info=EMLINK -GET_CB_FLAG=EMLINK flag=EMLINK -REQ_MAPPING_TYPE=EMLINK map:WC=EMLINK -mmap=EMLINK map=EMLINK " +
			"-GET_INFO_V2=EMLINK map=EMLINK mappings:0 map -munmap=EMLINK unmap=EMLINK unmap -UNPIN_BUFFER=EMLINK unpin=EMLINK unpin " +
			"-close=EMLINK close=EMLINK live:0",
		"gdrdrv:2.3 open -PIN_BUFFER=EMLINK pin=EMLINK pin -GET_INFO=EMLINK info=EMLINK -GET_INFO=EMLINK map=EMLINK mappings:0 unpin close live:0",
		// The driver drops a mapping when the memory is freed.
		"gdrdrv:2.3 transient revokes open pin map=EAGAIN mappings:0 unpin close", "gdrdrv:2.6 transient revokes open pin map=EAGAIN mappings:0 unpin close",
		// Flags and tokens.
		"gdrdrv:2.6 open pin:PCIe", "gdrdrv:2.6 noPCIe open pin:PCIe=EINVAL live:1", "gdrdrv:2.4 open pin:PCIe=EINVAL~knows.no.pin.flags live:1",
		"gdrdrv:2.4 open pin tokens:0,0", "gdrdrv:2.6 transient open pin:token", "gdrdrv:2.6 open pin:token",
		"gdrdrv:2.4 transient open pin:token tokens:7,9", "gdrdrv:2.4 open pin:token=EINVAL live:1",
		"gdrdrv:2.6 open attributes:1,1,0", "gdrdrv:2.5 noPCIe open attributes:1,0,0", "gdrdrv:2.6 transient noPCIe open attributes:0,0,0",
		"gdrdrv:2.4 open attributes:0,0,0", "gdrdrv:2.0 open attributes:0,0,0",
		// Types of mappings. One that was asked for does not apply to later mappings, and a request that fails is made again.
		"gdrdrv:2.6 has:device,WC open pin map got:device", "gdrdrv:2.5 has:cached,WC open pin map:WC got:WC",
		"gdrdrv:2.6 has:WC open pin map:cached=ENOTSUP mappings:0", "gdrdrv:2.4 has:WC open pin map:WC got:WC",
		"gdrdrv:2.4 has:WC open pin map:cached=ENOTSUP~type.2.was.asked.for,.gdrdrv.gave.type.1 mappings:0", "gdrdrv:2.3 has:cached open pin map got:cached",
		"gdrdrv:2.3 has:cached open pin map:WC=ENOTSUP~type.1.was.asked.for,.gdrdrv.gave.type.2 mappings:0",
		"gdrdrv:2.6 has:cached,WC open pin map:WC got:WC unmap map got:cached unmap map:WC got:WC unmap map:WC got:WC unmap asks:3 " +
			"map got:cached unmap -REQ_MAPPING_TYPE=EMLINK map:WC=EMLINK map:WC got:WC",
		// The host closed the descriptor, and its number is nothing, or another open of the driver. No call reaches that
		// one's buffers, and gdr_close leaves it open. A mapping is the process's. A new gdr_open works.
		"gdrdrv:2.6 open pin hostCloses:again pin=EBADF~gdr_open attribute=EBADF info=EBADF flag=EBADF map=EBADF unpin=EBADF close since:0 open pin unpin close",
		"gdrdrv:2.6 open pin map hostCloses:again info=EBADF since:0 unmap map=EBADF unpin=EBADF close since:1 mappings:0 open pin unpin close",
	} {
		run(t, script)
	}
}

// A pin calls CUDA only to set SYNC_MEMOPS on the caller's own bytes, if it has some.
func TestSyncMemopsOfOwnBytes(t *testing.T) {
	sim := cudatest.Need(t)
	addr := sim.MemAlloc(0, 2<<20)
	var asked [][2]uint64
	s, err := open(newFake(t, 0x20006), func(addr, size uint64) {
		asked = append(asked, [2]uint64{addr, size})
		syncMemops(addr, size)
	})
	require.NoError(t, err)
	for _, c := range []struct {
		skip, tail uint64
		own        [][2]uint64
	}{
		{1 << 16, 1 << 16, nil},
		{8, 12, [][2]uint64{{addr + 8, 1<<17 - 20}}},
		{0, 0, [][2]uint64{{addr, 1 << 17}}},
	} {
		asked = nil
		sim.Called()
		p, err := s.Pin(backend.PinRequest{Addr: addr, Size: 1 << 17, Skip: c.skip, Tail: c.tail})
		require.NoError(t, err)
		require.Equal(t, c.own, asked)
		require.Equal(t, c.own == nil, len(sim.Called()) == 0)
		require.NoError(t, p.Unpin())
	}
	asked = nil
	_, err = s.Pin(backend.PinRequest{Addr: 0, Size: 8})
	require.ErrorIs(t, err, unix.EINVAL)
	require.Empty(t, asked, "for a buffer that does not pin")
}
