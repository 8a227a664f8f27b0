// SPDX-License-Identifier: MIT
/* Simulated libcuda: virtual memory management. Test code. */
#include "cuda_sim.h"

#include <stdlib.h>
#include <string.h>

static struct handle *handles;

/* Of struct location. Host memory can be made and exported, and not mapped. */
enum { LOCATION_DEVICE = 1, LOCATION_HOST = 2, LOCATION_HOST_NUMA = 3 };

static bool granular(uint64_t n)
{
	return n % GRANULARITY == 0;
}

/* Add a handle with one reference. It takes the caller's reference of m. */
static struct handle *handle_new(struct mem *m, const struct mem_prop *prop)
{
	struct handle *h = calloc(1, sizeof(*h));

	if (!h) {
		mem_put(m);
		return NULL;
	}
	*h = (struct handle){ .next = handles, .refs = 1, .mem = m, .prop = *prop };
	/* The number is unlike an index, a pointer or an fd. */
	h->id = 0x5100000000ull + next_id() * 16;
	handles = h;
	live++;
	return h;
}

static struct handle *handle_find(uint64_t id)
{
	return LIST_FIND(h, handles, h->id == id && h->refs);
}

/* Called after refs or mappings went down. */
static void handle_gc(struct handle *h)
{
	if (h->refs || h->mappings)
		return;
	LIST_TAKE(handles, h);
	mem_put(h->mem);
	free(h);
}

static int check_prop(const struct mem_prop *prop)
{
	static const uint8_t zero[sizeof(prop->reserved)];

	if (!prop || prop->type != 1 || prop->location.type < LOCATION_DEVICE || prop->location.type > LOCATION_HOST_NUMA)
		return CU_INVALID_VALUE;
	if (prop->location.type != LOCATION_DEVICE && !rm_mode())
		return CU_NOT_SUPPORTED;
	if (prop->location.id < 0 || prop->location.id >= (prop->location.type == LOCATION_DEVICE ? device_count() : 1))
		return CU_INVALID_DEVICE;
	if (prop->win32_handle_meta || prop->compression > 1 || prop->gpu_direct_rdma > 1 ||
	    prop->usage || memcmp(prop->reserved, zero, sizeof(zero)) != 0)
		return CU_INVALID_VALUE;
	if (prop->requested_handle_types & ~HANDLE_POSIX_FD)
		return CU_NOT_SUPPORTED;
	return CU_OK;
}

/* 580.159.04 gives it for any prop, also for one of zeros that cuMemCreate refuses. */
SIM_CALL(cuMemGetAllocationGranularity, (size_t *granularity, const struct mem_prop *prop, int option),
	 prop && (option == 0 || option == 1) ? GIVE(granularity, GRANULARITY) : CU_INVALID_VALUE)

static int create(uint64_t *id, size_t size, const struct mem_prop *prop, uint64_t flags)
{
	int result = check_prop(prop);
	struct handle *h;
	struct mem *m;

	if (result)
		return result;
	if (!id || !size || !granular(size) || flags)
		return CU_INVALID_VALUE;
	m = prop->location.type == LOCATION_DEVICE ? mem_new(prop->location.id, size, &result) : mem_new_host(size, &result);
	if (!m)
		return result;
	h = handle_new(m, prop);
	if (!h)
		return CU_OUT_OF_MEMORY;
	*id = h->id;
	return CU_OK;
}

SIM_CALL(cuMemCreate, (uint64_t *id, size_t size, const struct mem_prop *prop, uint64_t flags),
	 create(id, size, prop, flags))

static int release(struct handle *h)
{
	if (!h)
		return CU_INVALID_VALUE;
	h->refs--;
	live--;
	handle_gc(h);
	return CU_OK;
}

SIM_CALL(cuMemRelease, (uint64_t id), release(handle_find(id)))

/* A released handle that has a mapping is valid again afterwards. */
static int retain(uint64_t *id, const struct buffer *b)
{
	if (!id || !b || !b->handle)
		return CU_INVALID_VALUE;
	b->handle->refs++;
	live++;
	*id = b->handle->id;
	return CU_OK;
}

SIM_QUESTION(enter, cuMemRetainAllocationHandle, addr, (uint64_t *id, void *addr),
	 retain(id, buffer_find((uintptr_t)addr)))

static int properties(struct mem_prop *prop, const struct handle *h)
{
	if (!h || !prop)
		return CU_INVALID_VALUE;
	*prop = h->prop;
	return CU_OK;
}

SIM_CALL(cuMemGetAllocationPropertiesFromHandle, (struct mem_prop *prop, uint64_t id), properties(prop, handle_find(id)))

/* The address that is wanted is not followed: the manual calls it a hint. */
static int reserve(uint64_t *addr, size_t size, size_t align, uint64_t flags)
{
	if (!addr || !size || !granular(size) || align & (align - 1) || flags)
		return CU_INVALID_VALUE;
	return va_take(size, align, true, addr);
}

SIM_CALL(cuMemAddressReserve, (uint64_t *addr, size_t size, size_t align, uint64_t want, uint64_t flags),
	 ((void)want, reserve(addr, size, align, flags)))

/* A mapping with a byte in the range; NULL if there is none. */
static struct buffer *mapping_in(uint64_t addr, uint64_t size)
{
	struct buffer *b;

	for (b = buffer_first(); b && b->addr < addr + size; b = b->next)
		if (b->addr + b->size > addr)
			return b;
	return NULL;
}

static int unreserve(uint64_t addr, size_t size)
{
	const struct va *v = va_find(addr);

	if (!v || !v->reservation || v->addr != addr || v->size != size || mapping_in(addr, size))
		return CU_INVALID_VALUE;
	va_release(addr);
	return CU_OK;
}

SIM_CALL(cuMemAddressFree, (uint64_t addr, size_t size), unreserve(addr, size))

static int map(uint64_t addr, size_t size, size_t offset, uint64_t id, uint64_t flags, const void *caller)
{
	const struct va *v = va_find(addr);
	struct handle *h = handle_find(id);
	struct buffer *b;
	int result;

	if (!h || !v || !v->reservation || flags)
		return CU_INVALID_VALUE;
	if (!size || !granular(addr) || !granular(size) || size > h->mem->size)
		return CU_INVALID_VALUE;
	if (h->mem->host || offset || size < h->mem->size)	/* the real one maps whole objects (580) */
		return CU_NOT_SUPPORTED;
	if (size > v->size || addr - v->addr > v->size - size || mapping_in(addr, size))
		return CU_INVALID_VALUE;
	b = buffer_add(addr, size, h->mem, 0);
	if (!b)
		return CU_OUT_OF_MEMORY;
	/* RM is told when a GPU may use it. */
	result = rm_mode() ? CU_OK : mem_map(h->mem, addr, size, NULL, false);
	if (result) {
		buffer_drop(b);
		return result;
	}
	b->handle = h;
	h->mappings++;
	strict_made(addr, size, caller);
	return CU_OK;
}

SIM_CALL(cuMemMap, (uint64_t addr, size_t size, size_t offset, uint64_t id, uint64_t flags),
		map(addr, size, offset, id, flags, CALLER))

/* CU_OK if the range is one or more whole mappings without a gap. */
static int whole_mappings(uint64_t addr, uint64_t size)
{
	uint64_t at = addr;

	if (!size || !granular(addr) || !granular(size) || size > UINT64_MAX - addr)
		return CU_INVALID_VALUE;
	while (at < addr + size) {
		const struct buffer *b = buffer_find(at);

		if (!b || !b->handle || b->addr != at || b->size > addr + size - at)
			return CU_INVALID_VALUE;
		at += b->size;
	}
	return CU_OK;
}

/*
 * RM hears of another access to a mapping: all maps of it end, and the new ones begin. A mapping that no GPU may use
 * has no range.
 */
static int tell(struct buffer *b)
{
	const struct uvm now = { .kind = UVM_ALONE, .addr = b->addr, .size = b->size, .owner = b->mem->device,
				 .object = b->mem->object };
	unsigned int users = b->readers | b->writers;
	int result = mem_unmap(b->addr);

	if (!result && users)
		result = uvm_begin(&now, users, NULL);
	if (result) {
		const struct uvm *left = uvm_find(b->addr);

		b->readers &= left ? left->gpus : 0;
		b->writers &= left ? left->gpus : 0;
	}
	return result;
}

static int unmap(uint64_t addr, size_t size)
{
	int result = whole_mappings(addr, size);
	struct buffer *b;

	if (result)
		return result;
	while ((b = mapping_in(addr, size))) {
		struct handle *h = b->handle;

		result = mem_unmap(b->addr);
		if (result)
			return result;
		buffer_drop(b);
		h->mappings--;
		handle_gc(h);
	}
	return CU_OK;
}

SIM_CALL(cuMemUnmap, (uint64_t addr, size_t size), unmap(addr, size))

static int check_desc(const struct access_desc *d)
{
	if (d->location.type != 1 || (d->flags != 0 && d->flags != 1 && d->flags != 3))
		return CU_INVALID_VALUE;
	if (d->location.id < 0 || d->location.id >= device_count())
		return CU_INVALID_DEVICE;
	return CU_OK;
}

static void grant(struct buffer *b, const struct access_desc *d)
{
	unsigned int bit = 1u << d->location.id;

	b->readers &= ~bit;
	b->writers &= ~bit;
	if (d->flags & 1)
		b->readers |= bit;
	if (d->flags & 2)
		b->writers |= bit;
}

static int set_access(uint64_t addr, size_t size, const struct access_desc *desc, size_t n)
{
	int result = desc && n ? whole_mappings(addr, size) : CU_INVALID_VALUE;
	struct buffer *b;
	size_t i;

	for (i = 0; !result && i < n; i++)
		result = check_desc(&desc[i]);
	if (result)
		return result;
	flush();
	for (b = mapping_in(addr, size); b && b->addr < addr + size && !result; b = b->next) {
		unsigned int readers = b->readers, writers = b->writers;

		for (i = 0; i < n; i++)
			grant(b, &desc[i]);
		if (rm_mode() && (b->readers != readers || b->writers != writers))
			result = tell(b);
	}
	return result;
}

SIM_CALL(cuMemSetAccess, (uint64_t addr, size_t size, const struct access_desc *desc, size_t n),
	 set_access(addr, size, desc, n))

static int export_handle(void *out, uint64_t id, int type, uint64_t flags)
{
	const struct handle *h = handle_find(id);
	int fd, result;

	if (!out || !h || type != HANDLE_POSIX_FD || flags)
		return CU_INVALID_VALUE;
	if (!(h->prop.requested_handle_types & HANDLE_POSIX_FD))
		return CU_INVALID_VALUE;
	if (kernel_mode())
		return CU_NOT_SUPPORTED;
	result = rm_mode() ? rm_export_object(h->mem, h->prop.compression, &fd) : mem_export(h->mem, 0, h->mem->size, &fd);
	if (!result)
		memcpy(out, &fd, sizeof(fd));
	return result;
}

SIM_CALL(cuMemExportToShareableHandle, (void *out, uint64_t id, int type, uint64_t flags),
	 export_handle(out, id, type, flags))

/* The handle cannot be exported again: it has no handle types. */
static int import_handle(uint64_t *id, int fd, int type)
{
	struct mem_prop prop = { .type = 1, .location = { .type = LOCATION_DEVICE } };
	struct handle *h;
	struct mem *m;
	int result;

	if (!id || type != HANDLE_POSIX_FD)
		return CU_INVALID_VALUE;
	if (!rm_mode())
		return CU_NOT_SUPPORTED;
	m = mem_import_fd(fd, &result);
	if (!m)
		return result;
	prop.location.id = m->device;
	h = handle_new(m, &prop);
	if (!h)
		return CU_OUT_OF_MEMORY;
	*id = h->id;
	return CU_OK;
}

SIM_CALL(cuMemImportFromShareableHandle, (uint64_t *id, void *os_handle, int type),
	 import_handle(id, (int)(intptr_t)os_handle, type))
