package nvrm

// The requests of /dev/nvidia-uvm (UVM, unified virtual memory), whose numbers carry no size: libcuda says by them
// where memory objects lie. The library hears them and makes none. So one of the right size is done, and nothing is kept of it.

// uvmRequests has the names, and the structs of uapi.go.
var uvmRequests = map[uint32]struct{ name, args string }{
	25: {"UVM_REGISTER_SPACE", "uvm_vaspace"},
	26: {"UVM_UNREGISTER_SPACE", "uvm_uuid"},
	33: {"UVM_MAP", "uvm_map"},
	34: {"UVM_FREE", "uvm_range"},
	37: {"UVM_REGISTER_GPU", "uvm_gpu"},
	38: {"UVM_UNREGISTER_GPU", "uvm_uuid"},
	65: {"UVM_REGION", "uvm_part"},
	66: {"UVM_UNMAP", "uvm_part"},
	68: {"UVM_POOL", "uvm_pool"},
	73: {"UVM_CREATE", "uvm_range"},
	75: {"UVM_MM", "uvm_mm"},
}

// uvmLayout is a request's struct in this driver; its size is 0 where there is none.
func (d *Driver) uvmLayout(nr uint32) layout {
	if nr == 34 && d.Version >= 590 {
		return layouts["uvm_free_590"]
	}
	return d.in(uvmRequests[nr].args)
}

// SizeOn is the bytes of a request's struct on a file.
func (d *Driver) SizeOn(f *File, cmd uint32) int {
	if f.Kind != UVM {
		return Size(cmd)
	}
	return d.uvmLayout(cmd).size
}

// uvmRequest answers a request on a file of UVM's. A number that UVM does not know is EINVAL.
func (d *Driver) uvmRequest(f *File, nr uint32, bytes []byte) error {
	arg := args{bytes, d.uvmLayout(nr)}
	if arg.size == 0 {
		return errInvalid
	}
	arg.put32("status", uint32(d.Fault(f, uvmRequests[nr].name)))
	return nil
}
