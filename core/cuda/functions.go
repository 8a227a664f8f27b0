package cuda

// Functions is the addresses of those functions of the driver that C calls by itself. A call
// from C must be made as Relaxed makes it.
type Functions struct {
	PointerGetAttributes uintptr
	CtxPushCurrent       uintptr
	CtxPopCurrent        uintptr
	StreamSynchronize    uintptr
	MemcpyHtoDAsync      uintptr
	MemcpyDtoHAsync      uintptr

	// 0 in an old driver.
	StreamWriteValue32              uintptr
	ThreadExchangeStreamCaptureMode uintptr
}

// Functions gives them. It returns ENOTSUP where the driver lacks one that must be there.
func (d *Driver) Functions() (f Functions, err error) {
	for _, c := range []struct {
		of symbol
		to *uintptr
	}{
		{symPointerGetAttributes, &f.PointerGetAttributes},
		{symCtxPushCurrent, &f.CtxPushCurrent},
		{symCtxPopCurrent, &f.CtxPopCurrent},
		{symStreamSynchronize, &f.StreamSynchronize},
		{symMemcpyHtoDAsync, &f.MemcpyHtoDAsync},
		{symMemcpyDtoHAsync, &f.MemcpyDtoHAsync},
	} {
		if *c.to = d.fn[c.of]; *c.to == 0 {
			return Functions{}, tooOld(c.of)
		}
	}
	f.StreamWriteValue32 = d.fn[symStreamWriteValue32]
	f.ThreadExchangeStreamCaptureMode = d.fn[symThreadExchangeStreamCaptureMode]
	return f, nil
}
