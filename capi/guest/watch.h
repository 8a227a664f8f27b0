/* SPDX-License-Identifier: MIT */
/*
 * watch.h - sees one request that libcuda makes of the kernel.
 *
 * CUDA does not say which object of the driver an address lies in. It names the
 * object to the kernel when it exports the address as a dma-buf. So we watch that one call.
 *
 * The slot and the copy of the library that watches are found before the call. What runs during
 * it is C.
 *
 * 1. The slot: the one R_*_JUMP_SLOT for "ioctl" in libcuda. That is the library named
 *    libcuda.so that export lies in. Where a tool's function stands for libcuda's, it is the
 *    first library of that name; where none has the name, the library that export lies in.
 * 2. For how long: while a thread is in gdr_watch_export. Meanwhile the slot holds our
 *    function. Then its old value is restored, and the page is read-only again if the
 *    loader had made it so.
 * 3. Other threads in libcuda pass through our function. It forwards each request
 *    unchanged, and looks only at exports of the threads that watch. There are 256 places
 *    for those.
 * 4. The lock is held while the slot changes. It is not held while libcuda, the loader or
 *    another tool runs.
 * 5. Several copies of this library in a process: the one that was loaded first watches for
 *    all. They find its gdr_watch_export as the loader does, by name.
 * 6. Requests go to the C library's ioctl, or to what was in the slot at our first watch: a
 *    tool's function stays in the chain.
 * 7. A child that another thread forks meanwhile keeps our function in the slot.
 *    It goes on forwarding there. CUDA itself does not work in such a child.
 * 8. Where it is not watched: ENOTSUP. rm then finds objects in other ways. That is so
 *    without such a slot (libcuda is bound otherwise, or an unknown machine), while another
 *    libcuda is watched, and where a tool has put its function there after our first watch.
 * 9. The library cannot be unloaded (NODELETE), so the function stays valid for a
 *    thread that is in it.
 */
#ifndef GDR_WATCH_H
#define GDR_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

struct gdr_watch {
	int32_t result;		/* CUresult of the export */
	int32_t fd;		/* the dma-buf; -1: none. The caller closes it. */
	uint32_t requests;	/* exports that the kernel was asked for; 0: none seen */
	uint32_t size;		/* bytes of the first one's struct */
	uint8_t head[576];	/* the first bytes of that struct; 0 behind its end */
};

/* Where a libcuda keeps the address of ioctl. */
struct gdr_watch_slot {
	uintptr_t at;
	uintptr_t low, high;	/* the library */
	bool read_only;		/* the loader made the page so */
};

/*
 * What Go has found for an export. It lies here for a forked child: to find it takes the
 * loader's lock, which a thread of the parent may have held at the fork.
 */
extern struct gdr_watched {
	uintptr_t export;	/* 0: nothing was found yet; stored last, by Go's atomics */
	struct gdr_watch_slot slot;
	uintptr_t by;		/* gdr_watch_export of the copy that watches; 0: nothing can be watched */
} gdr_watched;

/* A library that is loaded, or was. */
struct gdr_library {
	uintptr_t addr;		/* added to the addresses in its file */
	uintptr_t headers;	/* its program headers */
	uint64_t count;		/* of them */
};

/* Lists the libraries in the loader's order, up to room. Returns how many there are. */
size_t gdr_list_libraries(struct gdr_library *list, size_t room);

/* Copies what is at addr, if it lies in a library. Meanwhile none is unloaded. */
bool gdr_read_library(uintptr_t addr, void *to, size_t bytes);

#pragma GCC visibility pop

/*
 * Calls export, which is libcuda's cuMemGetHandleForAddressRange, for a dma-buf
 * of size bytes at addr, and notes the request that goes through the slot. Returns 0, or
 * ENOTSUP where the slot cannot be watched and export was not called. Thread-safe. Needs a
 * current context.
 *
 * Exported for other copies of the library (GDRAPI_PRIVATE). Rename it when what it takes or
 * answers changes: copies of both kinds may be in a process.
 */
int gdr_watch_export(const struct gdr_watch_slot *s, void *export, uint64_t addr, uint64_t size,
		     struct gdr_watch *w);

#endif
