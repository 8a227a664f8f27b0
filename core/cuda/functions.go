package cuda

// Functions is the addresses of those functions of the driver that C calls by itself. A call
// from C must be made as Relaxed makes it.
type Functions struct {
	PointerGetAttributes uintptr

	DeviceGet               uintptr
	DevicePrimaryCtxRetain  uintptr
	DevicePrimaryCtxRelease uintptr
	CtxPushCurrent          uintptr
	CtxPopCurrent           uintptr

	StreamCreate      uintptr
	StreamDestroy     uintptr
	StreamSynchronize uintptr
	MemcpyHtoDAsync   uintptr
	MemcpyDtoHAsync   uintptr

	MemHostRegister         uintptr
	MemHostUnregister       uintptr
	MemHostGetDevicePointer uintptr

	// 0 in an old driver.
	StreamWriteValue32              uintptr
	ThreadExchangeStreamCaptureMode uintptr
}

// ForC gives the Functions of the driver. It returns ENOTSUP where nobody in this process has
// loaded the driver, or where the driver lacks one that must be there.
func ForC() (Functions, error) {
	d, err := Loaded()
	if err != nil {
		return Functions{}, err
	}
	return d.functions()
}

func (d *Driver) functions() (f Functions, err error) {
	for _, c := range []struct {
		of symbol
		to *uintptr
	}{
		{symPointerGetAttributes, &f.PointerGetAttributes},
		{symDeviceGet, &f.DeviceGet},
		{symDevicePrimaryCtxRetain, &f.DevicePrimaryCtxRetain},
		{symDevicePrimaryCtxRelease, &f.DevicePrimaryCtxRelease},
		{symCtxPushCurrent, &f.CtxPushCurrent},
		{symCtxPopCurrent, &f.CtxPopCurrent},
		{symStreamCreate, &f.StreamCreate},
		{symStreamDestroy, &f.StreamDestroy},
		{symStreamSynchronize, &f.StreamSynchronize},
		{symMemcpyHtoDAsync, &f.MemcpyHtoDAsync},
		{symMemcpyDtoHAsync, &f.MemcpyDtoHAsync},
		{symMemHostRegister, &f.MemHostRegister},
		{symMemHostUnregister, &f.MemHostUnregister},
		{symMemHostGetDevicePointer, &f.MemHostGetDevicePointer},
	} {
		if *c.to = d.fn[c.of]; *c.to == 0 {
			return Functions{}, tooOld(c.of)
		}
	}
	f.StreamWriteValue32 = d.fn[symStreamWriteValue32]
	f.ThreadExchangeStreamCaptureMode = d.fn[symThreadExchangeStreamCaptureMode]
	return f, nil
}
