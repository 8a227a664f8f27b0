// SPDX-License-Identifier: MIT
/* Simulated libcuda: host memory, registered memory and managed memory. Test code. */
#include "cuda_sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rm_uapi.h"

#define IO_MEMORY 4u	/* flags of cuMemHostRegister */
#define READ_ONLY 8u

/* Memory that this library made, or that the host has registered. */
struct host {
	struct host *next;
	uint64_t addr, size;
	bool managed;
	const struct ctx *registered;	/* in this context; NULL: not registered, but made here */
	const struct ctx *ctx;	/* in which it was made, or registered */
	struct uvm *uvm;	/* the GPU's map of it, in RM mode; NULL: none */
	uint32_t object;	/* ... and the object that is mapped */
};

static struct host *hosts;

/*
 * The context's GPU gets it, whole host pages. Pages that it has already stay as they are. Managed memory is
 * paged, and not mapped.
 */
static int host_map(struct host *h)
{
	uint64_t page = (uint64_t)getpagesize(), start = h->addr & ~(page - 1);
	uint64_t size = (h->addr + h->size - start + page - 1) & ~(page - 1);
	int device = h->ctx->device, result;

	if (!rm_mode() || h->managed || uvm_in_use(start, size))
		return CU_OK;
	result = object_new(rm_device(device), RM_CLASS_LOCKED, size, &h->object);
	if (result)
		return result;
	result = uvm_begin(&(struct uvm){ .kind = UVM_ALONE, .addr = start, .size = size, .owner = device,
					  .object = h->object }, 1u << device, &h->uvm);
	if (result)
		object_free(rm_device(device), h->object);
	return result;
}

static void host_unmap(struct host *h)
{
	if (h->uvm && !uvm_end(h->uvm))
		object_free(rm_device(h->ctx->device), h->object);
	h->uvm = NULL;
}

static void host_drop(struct host *h)
{
	LIST_TAKE(hosts, h);
	live--;
	host_unmap(h);
}

static int host_alloc(void **addr, size_t size, bool managed)
{
	int result = CU_OUT_OF_MEMORY;

	struct host *h;
	void *p;

	if (!addr || !size)
		return CU_INVALID_VALUE;
	h = calloc(1, sizeof(*h));
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!h || p == MAP_FAILED)
		goto fail;
	*h = (struct host){ .next = hosts, .addr = (uint64_t)(uintptr_t)p, .size = size,
			    .managed = managed, .ctx = current_ctx() };
	result = host_map(h);
	if (result)
		goto fail;
	hosts = h;
	live++;
	*addr = p;
	return CU_OK;
fail:
	if (p != MAP_FAILED)
		munmap(p, size);
	free(h);
	return result;
}

SIM_CALL_CTX(cuMemAllocHost_v2, (void **addr, size_t size), host_alloc(addr, size, false))

/* flags: for all contexts, 1, in the GPU's address space, 2, write-combined, 4. */
SIM_CALL_CTX(cuMemHostAlloc, (void **addr, size_t size, unsigned int flags),
	     flags <= 7 ? host_alloc(addr, size, false) : CU_INVALID_VALUE)

/* flags: attached to all streams, 1, or to the host, 2. */
SIM_CALL_CTX(cuMemAllocManaged, (void **addr, size_t size, unsigned int flags),
		    flags == 1 || flags == 2 ? host_alloc(addr, size, true) : CU_INVALID_VALUE)

/* The memory that starts there. */
int host_free(uint64_t addr, bool managed)
{
	struct host *h = LIST_FIND(h, hosts, h->addr == addr && h->managed == managed && !h->registered);

	if (!h)
		return CU_INVALID_VALUE;
	flush();
	host_drop(h);
	munmap((void *)(uintptr_t)addr, h->size);
	free(h);
	return CU_OK;
}

SIM_CALL_CTX(cuMemFreeHost, (void *addr), host_free((uint64_t)(uintptr_t)addr, false))

static const struct host *first_overlap(uint64_t addr, uint64_t size)
{
	return LIST_FIND(h, hosts, addr < h->addr + h->size && h->addr < addr + size);
}

/* Whether all of the range is page-locked memory of one piece. */
bool host_locked(uint64_t addr, uint64_t size)
{
	const struct host *h = first_overlap(addr, size);

	return h && !h->managed && addr >= h->addr && addr + size <= h->addr + h->size;
}

/* Whether the range is neither in one piece of memory that is known here, nor outside of all. */
bool host_mixed(uint64_t addr, uint64_t size)
{
	const struct host *h = first_overlap(addr, size);

	return h && (addr < h->addr || addr + size > h->addr + h->size);
}

/* No advice is modelled: managed memory is as if it had been given none. Other memory has no attributes. */
static int range_attribute(int *data, size_t size, int attr, uint64_t addr, uint64_t count)
{
	enum { READ_MOSTLY = 1, LAST = 8, NO_DEVICE = -2 };
	const struct host *h = first_overlap(addr, count);

	if (!data || size != sizeof(*data) || attr < READ_MOSTLY || attr > LAST || !count)
		return CU_INVALID_VALUE;
	if (!h || !h->managed || addr < h->addr || count > h->addr + h->size - addr)
		return CU_INVALID_VALUE;
	/* 5 and 7 are types. */
	*data = attr == READ_MOSTLY || attr == 5 || attr == 7 ? 0 : NO_DEVICE;
	return CU_OK;
}

SIM_CALL(cuMemRangeGetAttribute, (void *data, size_t size, int attr, uint64_t addr, size_t count),
	 range_attribute(data, size, attr, addr, count))

/*
 * Whether each page of the range is mapped, and can be written to, or read, as the driver
 * needs when it locks the pages. A process that cannot open its list of mappings has them.
 */
static bool is_memory(uint64_t addr, uint64_t size, bool write)
{
	uint64_t at = addr, from, to;
	char line[512], perms[5];
	FILE *maps = fopen("/proc/self/maps", "re");

	if (!maps)
		return true;
	while (at < addr + size && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &from, &to, perms) != 3 || to <= at)
			continue;
		if (from > at || perms[0] != 'r' || (write && perms[1] != 'w'))
			break;
		at = to;
	}
	fclose(maps);
	return at >= addr + size;
}

/* flags: 1 for all contexts and 2 in the GPU's address space, which is so in any case. */
static int host_register(const struct ctx *ctx, uint64_t addr, uint64_t size, unsigned int flags)
{
	struct host *h;
	int result;

	if (!addr || !size || size > UINT64_MAX - addr || flags > 0xf)
		return CU_INVALID_VALUE;
	if (first_overlap(addr, size))
		return CU_HOST_ALREADY_REGISTERED;
	if (va_is_device(addr, size))
		return CU_INVALID_VALUE;
	if (!(flags & IO_MEMORY) && !is_memory(addr, size, !(flags & READ_ONLY)))
		return CU_INVALID_VALUE;
	h = calloc(1, sizeof(*h));
	if (!h)
		return CU_OUT_OF_MEMORY;
	*h = (struct host){ .next = hosts, .addr = addr, .size = size, .registered = ctx, .ctx = ctx };
	result = host_map(h);
	if (result) {
		free(h);
		return result;
	}
	hosts = h;
	live++;
	return CU_OK;
}

SIM_CALL_CTX(cuMemHostRegister_v2, (void *addr, size_t size, unsigned int flags),
	     host_register(current_ctx(), (uintptr_t)addr, size, flags))

static int host_unregister(uint64_t addr)
{
	struct host *h = LIST_FIND(h, hosts, h->addr == addr && h->registered);

	if (!h)
		return CU_HOST_NOT_REGISTERED;
	flush();
	host_drop(h);
	free(h);
	return CU_OK;
}

SIM_CALL_CTX(cuMemHostUnregister, (void *addr),
	     addr ? host_unregister((uintptr_t)addr) : CU_INVALID_VALUE)

/* Registrations end with their context. */
void host_forget(const struct ctx *ctx)
{
	struct host **link = &hosts;

	while (*link) {
		struct host *h = *link;

		if (h->ctx == ctx)
			host_unmap(h);
		if (h->registered != ctx) {
			link = &h->next;
			continue;
		}
		*link = h->next;
		live--;
		free(h);
	}
}

/* Host memory has one address on both sides. */
SIM_CALL_CTX(cuMemHostGetDevicePointer_v2, (uint64_t *dptr, void *addr, unsigned int flags),
	     !flags && host_locked((uintptr_t)addr, 1) ? GIVE(dptr, (uintptr_t)addr) : CU_INVALID_VALUE)

bool host_find(uint64_t addr, bool *managed)
{
	const struct host *h = first_overlap(addr, 1);

	*managed = h && h->managed;
	return h;
}
