// Package core gives the CPU a mapping of GPU memory, to read and write it by loads and
// stores. It is the control plane of libgdrapi, and a library for Go programs. It has no
// cgo: a program that imports it builds with CGO_ENABLED=0.
//
//	d, err := core.Open(core.Options{})
//	m, err := d.Map(addr, n) // addr is of cuMemAlloc, or of d.Alloc
//	m.WriteAt(p, off)
//	m.ReadAt(p, off)
//	m.Close()
//	d.Close()
//
// # Objects
//
// A [Device] is an open backend: a way to the memory of all GPUs. A [Buffer] is GPU memory
// that it has pinned, a [Mapping] is a Buffer's address range for the CPU, a [Memory] is GPU
// memory that the Device has allocated. Close of a Device closes all that was made through it. All methods may be called from any
// goroutine. A method of an object that is closed returns [ErrClosed].
//
// # Errors
//
// Every error but io.EOF unwraps to a unix.Errno, by errors.As. [Errno] gives it. The manual pages of
// the C functions say which one means what. A text says what to do.
//
// # Copies
//
// A write returns when its bytes are on their way to the GPU, as gdr_copy_to_mapping does.
// The GPU sees them before whatever this goroutine tells it next. A read has fetched what
// it returns. A copy makes one access of 1, 2, 4 or 8 bytes that are aligned in GPU memory.
// Longer ones are made of several. Pages that the driver has taken back (the module gdrdrv
// without persistent mappings) answer EIO.
//
// # CUDA
//
// The package loads libcuda.so.1, and calls cuInit only in [Device.Alloc]. The memory that
// Map and Pin take belongs to the program, which has initialised CUDA. Without cgo the
// package does not watch what libcuda asks the kernel, as libgdrapi.so does. So on the rm
// backend memory of CUDA's pools, and of cuMemCreate without a POSIX-fd handle type, cannot
// be pinned: ENOTSUP. A child of a fork cannot use what its parent has opened. Go programs
// do not fork without exec.
package core
