// Package core is the control plane of libgdrapi. It does what the functions of the C
// ABI do, except for the copies. It has no cgo.
//
// A [Device] is an open backend: a way to the memory of all GPUs. A [Buffer] is GPU memory
// that it has pinned, a [Mapping] is a Buffer's address range for the CPU, a [Memory] is GPU
// memory that the Device has allocated, a [Cache] keeps Buffers pinned and mapped. Close of
// a Device closes all that was made through it. All methods may be called from any
// goroutine. A method of an object that is closed returns [ErrClosed].
package core
