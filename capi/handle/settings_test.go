package handle

import (
	"math"
	"testing"

	"gdrapi/core"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What the environment and gdr_set_copy_policy ask for.
func TestLongCopies(t *testing.T) {
	const unasked, caller, auto = -1, 0, 1
	env := func(pairs ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	for _, c := range []struct {
		env  map[string]string
		call int
		want core.LongCopies
	}{
		{nil, unasked, core.LongCopies{}},
		{nil, caller, core.LongCopies{}},
		{nil, auto, core.LongCopies{Read: 16 << 10, Write: 1 << 20}},
		{env("GDRCOPY_COPY", "auto"), unasked, core.AutoCopies},
		{env("GDRCOPY_COPY", "auto"), caller, core.LongCopies{}},
		{env("GDRCOPY_COPY", "caller"), unasked, core.LongCopies{}},
		{env("GDRCOPY_COPY", "caller"), auto, core.AutoCopies},
		{env("GDRCOPY_DMA_READ", "1"), unasked, core.LongCopies{Read: 1}},
		{env("GDRCOPY_DMA_WRITE", "65536"), unasked, core.LongCopies{Write: 65536}},
		{env("GDRCOPY_DMA_WRITE", "65536"), caller, core.LongCopies{}},
		{env("GDRCOPY_COPY", "auto", "GDRCOPY_DMA_READ", "18446744073709551615"), unasked, core.LongCopies{Read: math.MaxUint64, Write: 1 << 20}},
		{env("GDRCOPY_COPY", "", "GDRCOPY_DMA_READ", ""), unasked, core.LongCopies{}},
	} {
		got, err := LongCopies(func(name string) string { return c.env[name] }, c.call)
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%v", c)
	}
	for name, texts := range map[string][]string{
		"GDRCOPY_COPY":      {"fast", "AUTO", "auto ", "0", "1"},
		"GDRCOPY_DMA_READ":  {"0", "-1", " 2", "+2", "1k", "0x10", "99999999999999999999"},
		"GDRCOPY_DMA_WRITE": {"0", "1_0", "x"},
	} {
		for _, text := range texts {
			_, err := LongCopies(func(n string) string { return env(name, text)[n] }, unasked)
			require.ErrorIs(t, err, unix.EINVAL)
			require.ErrorContains(t, err, name+" is not ")
			require.ErrorContains(t, err, "correct or unset it")
		}
	}
}
