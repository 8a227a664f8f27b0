package dl

import (
	"sync"
	"testing"
	"unsafe"

	"gdrapi/core/dl/dltest"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
)

// What it loads the host's own libraries do not find.
func TestOpenIsLocal(t *testing.T) {
	handle, err := Open(dltest.Library(t, "int gdr_dl_local(void) { return 7; }\n"))
	require.NoError(t, err)
	fn, err := purego.Dlsym(handle, "gdr_dl_local")
	require.NoError(t, err)
	require.EqualValues(t, 7, Call(fn))
	_, err = purego.Dlsym(purego.RTLD_DEFAULT, "gdr_dl_local")
	require.Error(t, err)
}

// A library that lacks a function is refused when it is loaded, not when it is called.
func TestOpenFindsAllFunctions(t *testing.T) {
	_, err := Open(dltest.Library(t, "void gdr_dl_absent(void);\nvoid gdr_dl_calls(void) { gdr_dl_absent(); }\n", "-Wl,-z,lazy"))
	require.ErrorContains(t, err, "gdr_dl_absent")
}

// Goroutines change threads between two calls, all the more often where many of them run.
func TestErrorsHaveText(t *testing.T) {
	var wg sync.WaitGroup
	for range 32 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 1000 {
				if _, err := Open("/nowhere/libnothing.so.9"); err == nil || err.Error() == "" {
					t.Errorf("the error is %#v", err)
					return
				}
			}
		}()
	}
	wg.Wait()
}

// Each kind of argument, with its sign and all its bits.
func TestWords(t *testing.T) {
	minus, high := ^uintptr(0)-4, uintptr(1)<<63
	object := new(int)
	for _, c := range []struct {
		arg  any
		want uintptr
	}{
		{-5, minus}, {int32(-5), minus}, {int64(-5), minus}, {int64(-1 << 63), high},
		{uint32(1 << 31), 1 << 31}, {uint64(1 << 63), high}, {high, high},
		{object, uintptr(unsafe.Pointer(object))}, {(*int)(nil), 0},
	} {
		require.Equal(t, c.want, word(c.arg), "%T %v", c.arg, c.arg)
	}
	for _, bad := range []any{nil, "text", int8(1), uint16(1), true, 1.5, []byte{1}} {
		require.Panics(t, func() { word(bad) }, "%T", bad)
	}
}

func TestCall(t *testing.T) {
	libc, err := Open("libc.so.6")
	require.NoError(t, err)
	find := func(name string) uintptr {
		fn, err := purego.Dlsym(libc, name)
		require.NoError(t, err)
		return fn
	}
	text := []byte("-12 rest\x00")
	var end *byte
	require.EqualValues(t, 8, Call(find("strlen"), &text[0]))
	require.Equal(t, -12, int(Call(find("strtol"), &text[0], &end, int32(10))))
	require.Same(t, &text[3], end)
	require.Equal(t, -18, int(Call(find("strtol"), &text[0], (*uintptr)(nil), uint64(16))), "NULL")
	require.EqualValues(t, 7, Call(find("abs"), -7))
}
