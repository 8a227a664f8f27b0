/* SPDX-License-Identifier: MIT */
/*
 * hear.h - a function of ours that hears what libcuda asks of the kernel.
 *
 * libcuda makes all requests through one slot, where it keeps the address of ioctl: the one
 * R_*_JUMP_SLOT for "ioctl" in the library named libcuda.so (slot.go). Our function stands in
 * the slot. It passes each request on, unchanged, and tells the table (heard.h) of those that
 * say which object lies where.
 *
 * 1. It is put there once, and never taken out. So no circle of such functions can come to
 *    be: two builds of this library stand in one chain, each with its own table.
 * 2. It passes on to what was in the slot: the C library's ioctl, or a tool's function.
 * 3. Each look finds out whether requests still come by: the slot has our function, or a
 *    call of what it has reaches ours. If they do not, the table ends for good.
 * 4. The numbers and structs of requests are those of open-gpu-kernel-modules 535.43 to 595.45.
 * 5. During one export a thread has the request noted that names the object.
 * 6. The library cannot be unloaded (NODELETE), so the function stays valid.
 */
#ifndef GDR_HEAR_H
#define GDR_HEAR_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Where a libcuda keeps the address of ioctl. */
struct gdr_slot {
	uintptr_t at;		/* 0: it has none */
	uintptr_t low, high;	/* the library */
	bool read_only;		/* the loader made the page so */
};

/*
 * What Go has found for an export. It lies here for a forked child: to find it takes the
 * loader's lock, which a thread of the parent may have held at the fork.
 */
extern struct gdr_export {
	uintptr_t function;	/* 0: nothing was found yet; stored last, by Go's atomics */
	struct gdr_slot slot;
} gdr_export;

/* What differs between drivers. 0: none that is known, and nothing is listened to. */
enum {
	GDR_HEAR_535 = 1,
	GDR_HEAR_550 = 2,	/* 256 GPUs have room in request 33 */
	GDR_HEAR_590 = 4,	/* request 34 has no length */
};

/*
 * Puts the function into the slot, if it is not there, and begins to listen to a driver.
 * Returns whether requests come by.
 */
bool gdr_hear(const struct gdr_slot *s, unsigned int driver);

/* Whether they come by now. */
bool gdr_hears(void);

/* What libcuda asked for during an export. */
struct gdr_watch {
	int32_t result;		/* CUresult of the export */
	int32_t fd;		/* the dma-buf; -1: none. The caller closes it. */
	uint32_t requests;	/* exports that the kernel was asked for */
	uint32_t size;		/* bytes of the first one's struct */
	uint32_t client, object;	/* that it names; 0 in a struct of an unknown size */
	uint64_t offset;
};

/*
 * Calls export, which is libcuda's cuMemGetHandleForAddressRange, for a dma-buf of size bytes
 * at addr. Returns 0, or ENOTSUP if no requests come by and export was not called. Thread-safe.
 * Needs a current context.
 */
int gdr_watch_export(uintptr_t export, uint64_t addr, uint64_t size, struct gdr_watch *w);

#pragma GCC visibility pop

#endif
