package long

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	spinForever = math.MaxUint64
	spinUnset   = 50
)

// unset is what counts where nothing is set.
var unset = [settingCount]uint64{
	copySpin: spinUnset, dmaRead: math.MaxUint64, dmaWrite: math.MaxUint64,
}

func clear(t *testing.T) {
	for _, s := range settings {
		t.Setenv(s.name, "")
	}
}

func TestSettings(t *testing.T) {
	clear(t)
	got, err := values()
	require.NoError(t, err)
	assert.Equal(t, unset, got, "each may be empty")
	for _, c := range []struct {
		name, text string
		of         int
		want       uint64
	}{
		{"GDRCOPY_COPY", "auto", copyWay, 1},
		{"GDRCOPY_COPY", "caller", copyWay, 0},
		{"GDRCOPY_COPY_SPIN", "forever", copySpin, spinForever},
		{"GDRCOPY_COPY_SPIN", "0", copySpin, 0},
		{"GDRCOPY_COPY_SPIN", "007", copySpin, 7},
		{"GDRCOPY_COPY_SPIN", "1000000000", copySpin, 1000000000},
		{"GDRCOPY_READ_THREADS", "1", readThreads, 1},
		{"GDRCOPY_READ_THREADS", "64", readThreads, 64},
		{"GDRCOPY_WRITE_THREADS", "2", writeThreads, 2},
		{"GDRCOPY_DMA_READ", "1", dmaRead, 1},
		{"GDRCOPY_DMA_WRITE", "65536", dmaWrite, 65536},
		{"GDRCOPY_DMA_WRITE", "18446744073709551615", dmaWrite, math.MaxUint64},
	} {
		t.Run(c.name+"="+c.text, func(t *testing.T) {
			t.Setenv(c.name, c.text)
			want := unset
			want[c.of] = c.want
			got, err := values()
			require.NoError(t, err)
			assert.Equal(t, want, got)
			assert.NoError(t, ReadSettings())
		})
	}
}

func TestBadSettings(t *testing.T) {
	const (
		way     = `"caller" or "auto"`
		spin    = `a number of microseconds up to 1000000000, or "forever"`
		threads = "a number from 1 to 64"
		bytes   = "a number of bytes, from 1"
	)
	clear(t)
	for _, c := range []struct{ name, text, want string }{
		{"GDRCOPY_COPY", "fast", way},
		{"GDRCOPY_COPY", "AUTO", way},
		{"GDRCOPY_COPY", "auto ", way},
		{"GDRCOPY_COPY", "0", way},
		{"GDRCOPY_COPY", "1", way},
		{"GDRCOPY_COPY_SPIN", "x", spin},
		{"GDRCOPY_COPY_SPIN", "-1", spin},
		{"GDRCOPY_COPY_SPIN", "1000000001", spin},
		{"GDRCOPY_COPY_SPIN", "5s", spin},
		{"GDRCOPY_COPY_SPIN", "auto", spin},
		{"GDRCOPY_READ_THREADS", "x", threads},
		{"GDRCOPY_READ_THREADS", "0", threads},
		{"GDRCOPY_READ_THREADS", "65", threads},
		{"GDRCOPY_READ_THREADS", "2x", threads},
		{"GDRCOPY_READ_THREADS", "forever", threads},
		{"GDRCOPY_WRITE_THREADS", "+2", threads},
		{"GDRCOPY_WRITE_THREADS", " 2", threads},
		{"GDRCOPY_WRITE_THREADS", "1_0", threads},
		{"GDRCOPY_WRITE_THREADS", "99999999999999999999", threads},
		{"GDRCOPY_DMA_READ", "0", bytes},
		{"GDRCOPY_DMA_READ", "-1", bytes},
		{"GDRCOPY_DMA_READ", " 2", bytes},
		{"GDRCOPY_DMA_WRITE", "1k", bytes},
		{"GDRCOPY_DMA_WRITE", "0x10", bytes},
		{"GDRCOPY_DMA_WRITE", "99999999999999999999", bytes},
	} {
		t.Run(c.name+"="+c.text, func(t *testing.T) {
			t.Setenv(c.name, c.text)
			assert.EqualError(t, ReadSettings(), c.name+" is not "+c.want+"; correct or unset it")
		})
	}
}
