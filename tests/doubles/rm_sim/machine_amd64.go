package main

import "golang.org/x/sys/unix"

// Calls with a path of amd64's alone: the path is their first argument.
const sysStatAt = unix.SYS_NEWFSTATAT

var old = map[int32]string{unix.SYS_OPEN: "open", unix.SYS_ACCESS: "access", unix.SYS_STAT: "stat", unix.SYS_LSTAT: "stat"}

// mapFresh maps fresh pages at addr in a stopped thread. code is the address of a system call
// instruction.
func mapFresh(tid int, code, addr, length uint64) error {
	var before, r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &before); err != nil {
		return err
	}
	r = before
	r.Rip, r.Rax = code, unix.SYS_MMAP
	r.Orig_rax = ^uint64(0) // no system call is restarted
	r.Rdi, r.Rsi, r.Rdx = addr, length, unix.PROT_READ|unix.PROT_WRITE
	r.R10, r.R8, r.R9 = unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED, ^uint64(0), 0
	if err := unix.PtraceSetRegs(tid, &r); err != nil {
		return err
	}
	if err := unix.PtraceSingleStep(tid); err != nil {
		return err
	}
	if err := waitStopped(tid); err != nil {
		return err
	}
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return err
	}
	if err := unix.PtraceSetRegs(tid, &before); err != nil {
		return err
	}
	if r.Rax != addr {
		return unix.Errno(-r.Rax)
	}
	return nil
}
