package probe

import (
	"errors"
	"testing"
	"time"

	"gdrapi/cmd/gdrcopy_doctor/internal/facts"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
)

// memory is what a mapping shows, with copies that may go wrong.
type memory struct {
	bytes               [256]byte
	writes, reads       int
	lost                int // that write does not arrive
	stale               int // that read moves nothing
	wrong               int // that read has one bit that is wrong
	badWrite, badReadAt int // that one is refused
}

var errRefused = errors.New("refused")

func (m *memory) write(b []byte) error {
	m.writes++
	switch m.writes {
	case m.badWrite:
		return errRefused
	case m.lost:
		return nil
	}
	copy(m.bytes[:], b)
	return nil
}

func (m *memory) read(b []byte) error {
	m.reads++
	switch m.reads {
	case m.badReadAt:
		return errRefused
	case m.stale:
		return nil
	}
	copy(b, m.bytes[:])
	if m.reads == m.wrong {
		b[len(b)-1] ^= 1
	}
	return nil
}

// What was read back is compared with what was sent.
func TestCompare(t *testing.T) {
	before := memory{}
	require.NoError(t, compare(before.write, before.read))
	for _, c := range []struct {
		name   string
		memory memory
		step   string
	}{
		{"all is right", memory{}, ""},
		{"a write that is lost", memory{lost: 1}, "comparison"},
		{"the second is lost", memory{lost: 2}, "comparison"},
		{"the second is lost, and an earlier trial wrote the same", memory{bytes: before.bytes, lost: 2}, "comparison"},
		{"a read that moves nothing", memory{stale: 1}, "comparison"},
		{"a wrong bit", memory{wrong: 1}, "comparison"},
		{"a write that is refused", memory{badWrite: 1}, "gdr_copy_to_mapping"},
		{"a read that is refused", memory{badReadAt: 2}, "gdr_copy_from_mapping"},
	} {
		err := compare(c.memory.write, c.memory.read)
		if c.step == "" {
			require.NoError(t, err, c.name)
			continue
		}
		var f *failed
		require.ErrorAs(t, err, &f, c.name)
		require.Equal(t, c.step, f.step, c.name)
	}
}

// The time of one call is in nanoseconds, and the empty call's is taken away. The clock is
// the test's.
func TestBeyond(t *testing.T) {
	at := time.Unix(0, 0)
	now := func() time.Time { return at }
	takes := func(d time.Duration) func() error {
		return func() error { at = at.Add(d); return nil }
	}
	refuse := func() error { return errRefused }
	rounds := 0
	slowFirst := func() error {
		rounds++
		if rounds <= callsOfRound {
			at = at.Add(time.Second)
		}
		at = at.Add(700)
		return nil
	}
	for _, c := range []struct {
		name        string
		empty, call func() error
		want        float64
		err         error
	}{
		{"a call", takes(50), takes(1050), 1000, nil},
		{"the quickest round counts", takes(200), slowFirst, 500, nil},
		{"less than an empty call", takes(50), takes(20), 1, nil},
		{"a call that is refused", takes(50), refuse, 0, errRefused},
		{"an empty call that is refused", refuse, takes(50), 0, errRefused},
	} {
		ns, err := beyond(now, c.empty, c.call)
		require.ErrorIs(t, err, c.err, c.name)
		require.Equal(t, c.want, ns, c.name)
	}
}

// Which call takes how long: the library is the test's, and so is the clock.
func TestTime(t *testing.T) {
	at := time.Unix(0, 0)
	var sizes [2]uintptr
	takes := func(d time.Duration, answer uintptr, size *uintptr) uintptr {
		return purego.NewCallback(func(_, _, _, n uintptr) uintptr {
			at = at.Add(d)
			if size != nil {
				*size = n
			}
			return answer
		})
	}
	m := mapping{library: &library{functions: map[string]uintptr{
		"gdr_runtime_get_version": takes(50, 13, nil), // it answers nothing: 13 is no error
		"gdr_copy_to_mapping":     takes(250, 0, &sizes[0]),
		"gdr_copy_from_mapping":   takes(1150, 0, &sizes[1]),
	}}}
	var trial facts.Trial
	require.NoError(t, m.time(func() time.Time { return at }, &trial))
	require.Equal(t, facts.Trial{WriteNS: 200, ReadNS: 1100}, trial)
	require.Equal(t, [2]uintptr{4, 4}, sizes, "bytes of a copy: what is printed says so")
}

func TestPageAt(t *testing.T) {
	for addr, want := range map[uint64]uint64{0: 0, 1: 0x10000, 0x10000: 0x10000, 0x7f0000010200: 0x7f0000020000, 0x1ffff: 0x20000} {
		require.Equal(t, want, pageAt(addr))
	}
}
