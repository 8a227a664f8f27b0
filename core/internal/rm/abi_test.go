package rm

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// What NVIDIA's headers lay out, in bytes: a struct's size, and the offsets of the fields that have a name here
// (open-gpu-kernel-modules 580: nvos.h, nv-ioctl.h, nv-unix-nvos-params-wrappers.h, ctrl0000*.h, ctrl0041.h, ctrl0080gpu.h, cl0080.h).
func TestLayout(t *testing.T) {
	for _, c := range []struct {
		of   any
		size uintptr
		want string
	}{
		{allocArgs{}, 48, "root 0 parent 4 object 8 class 12 params 16 paramsSize 32 status 40"},             // NVOS64
		{freeArgs{}, 16, "root 0 parent 4 object 8 status 12"},                                               // NVOS00
		{controlArgs{}, 32, "client 0 object 4 command 8 flags 12 params 16 paramsSize 24 status 28"},        // NVOS54
		{dupArgs{}, 28, "client 0 parent 4 object 8 clientSource 12 objectSource 16 status 24"},              // NVOS55
		{mapArgs{}, 56, "client 0 device 4 memory 8 offset 16 length 24 linear 32 status 40 flags 44 fd 48"}, // NVOS33 with a descriptor
		{unmapArgs{}, 32, "client 0 device 4 memory 8 linear 16 status 24"},                                  // NVOS34
		{cardInfo{}, 72, "valid 0 domain 4 bus 8 slot 9 vendor 12 device 14 gpuID 16 fbSize 48 minor 56"},    // nv_ioctl_card_info_t
		{registerFD{}, 4, "control 0"},                                                // nv_ioctl_register_fd_t
		{version{}, 72, "command 0 text 8"},                                           // nv_ioctl_rm_api_version_t
		{gpuIDInfo{}, 32, "gpuID 0 flags 4 deviceInstance 8"},                         // 0x205
		{attached{}, 128, ""},                                                         // 0x201
		{activeDevices{}, 3076, "n 0 list 4"},                                         // 0x288
		{activeDevices{}.list[0], 12, "gpuID 0 instance 4 compute 8"},                 //
		{confidential{}, 6, "before550 0 multiGPUMode 5"},                             // 0xCB330101
		{before550{}, 5, "feature 3"},                                                 //
		{chipset{}, 152, "flags 148"},                                                 // 0x104
		{handleInfo{}, 16, "object 0 index 4 result 8"},                               // 0xD02
		{subdevice{}, 8, "object 4"},                                                  // 0x800293
		{surfaceInfo{}, 16, "n 0 list 8"},                                             // 0x410110
		{surfaceItem{}, 8, "index 0 data 4"},                                          //
		{deviceParams{}, 56, "deviceInstance 0 clientShare 4 vaMode 48"},              // NV0080_ALLOC_PARAMETERS
		{importFD{}, 20, "fd 0 kind 4 device 8 parent 12 object 16"},                  // 0x3D06
		{exportInfo{}, 80, "fd 0 deviceInstance 4 mig 8 most 12 metadata 14"},         // 0x3D08
		{exportInfo535{}, 76, "fd 0 deviceInstance 4 most 8 metadata 10"},             //
		{exportObjects{}, 2128, "fd 0 device 4 most 8 metadata 10 objects 76 n 2124"}, // 0x3D0B
		{importObjects{}, 652, "fd 0 parent 4 objects 8 kinds 520 n 648"},             // 0x3D0C
	} {
		of, got := reflect.TypeOf(c.of), ""
		for i := 0; of.Kind() == reflect.Struct && i < of.NumField(); i++ {
			if f := of.Field(i); f.Name != "_" {
				got += fmt.Sprintf(" %s %d", f.Name, f.Offset)
			}
		}
		require.Equal(t, c.size, of.Size(), of.Name())
		require.Equal(t, c.want, got[min(1, len(got)):], of.Name())
	}
}
