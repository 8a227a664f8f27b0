// SPDX-License-Identifier: MIT
/* Simulated libcuda: device memory, in memfds or of a driver. Test code. */
#include "cuda_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEVICE_MEMORY (64ull << 30)

static uint64_t used[SIM_MAX_DEVICES];
static unsigned long count;	/* memories, each with one descriptor */

unsigned long mem_count(void)
{
	return count;
}

uint64_t mem_total(void)
{
	if (rm_mode())
		return rm_total();
	return kernel_mode() ? kernel_total() : DEVICE_MEMORY;
}

uint64_t mem_free_bytes(int device)
{
	if (rm_mode())
		return rm_free_bytes(device);
	return kernel_mode() ? kernel_free_bytes() : DEVICE_MEMORY - used[device];
}

/* A new struct, to put the memory into; NULL: there is no room. */
static struct mem *mem_of(int device, int *result)
{
	struct mem *m = calloc(1, sizeof(*m));

	*result = CU_OUT_OF_MEMORY;
	if (m)
		*m = (struct mem){ .refs = 1, .id = next_id(), .device = device, .fd = -1 };
	return m;
}

/* m where the memory is in it; else why not. */
static struct mem *filled(struct mem *m, int why, int *result)
{
	*result = why;
	if (!why)
		return m;
	free(m);
	return NULL;
}

/* All of a memfd, which is the memory's own from then on. */
static int fill_fd(struct mem *m, int fd)
{
	struct stat st;

	m->fd = fd;
	if (fstat(m->fd, &st) < 0)
		return CU_OUT_OF_MEMORY;
	m->dev = st.st_dev;
	m->ino = st.st_ino;
	m->size = (uint64_t)st.st_size;
	m->view = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, m->fd, 0);
	if (m->view == MAP_FAILED)
		return CU_OUT_OF_MEMORY;
	used[m->device] += m->size;
	count++;
	return CU_OK;
}

/* It is of no device. The client has to have it below one. */
struct mem *mem_new_host(uint64_t size, int *result)
{
	struct mem *m = mem_of(0, result);

	if (!m)
		return NULL;
	m->host = true;
	return filled(m, rm_mem_new(m, size), result);
}

struct mem *mem_import_fd(int fd, int *result)
{
	struct mem *m = mem_of(-1, result);

	return m ? filled(m, rm_import_object(m, fd), result) : NULL;
}

struct mem *mem_import_shared(int device, uint32_t client, uint32_t object, int *result)
{
	struct mem *m = mem_of(device, result);

	return m ? filled(m, rm_import_shared(m, client, object), result) : NULL;
}

struct mem *mem_new(int device, uint64_t size, int *result)
{
	struct mem *m = mem_of(device, result);
	char name[32];
	int fd, why;

	if (!m)
		return NULL;
	if (size > mem_free_bytes(device))
		return filled(m, CU_OUT_OF_MEMORY, result);
	m->size = size;
	if (kernel_mode())
		return filled(m, kernel_mem_new(&m->size, &m->kernel, &m->view), result);
	if (rm_mode())
		return filled(m, rm_mem_new(m, size), result);
	snprintf(name, sizeof(name), "gdrsim:%d:cuda", device);
	fd = memfd_create(name, MFD_CLOEXEC);
	why = fd < 0 || ftruncate(fd, (off_t)size) ? CU_OPERATING_SYSTEM : fill_fd(m, fd);
	if (why && fd >= 0)
		close(fd);
	return filled(m, why, result);
}

struct mem *mem_get(struct mem *m)
{
	m->refs++;
	return m;
}

void mem_put(struct mem *m)
{
	if (--m->refs)
		return;
	while (m->carves) {
		struct carve *c = m->carves;

		m->carves = c->next;
		free(c);
	}
	if (m->object) {
		rm_mem_free(m);
		free(m);
		return;
	}
	munmap(m->view, m->size);
	if (m->fd < 0) {
		kernel_mem_free(m->kernel);
	} else {
		used[m->device] -= m->size;
		count--;
		close(m->fd);
	}
	free(m);
}

/* The GPU of the memory, and those that reach all memory of ctx. */
static int map_rm(const struct mem *m, uint64_t addr, uint64_t size, const struct ctx *ctx, bool in_pool)
{
	const struct uvm u = { .kind = in_pool ? UVM_BLOCK : UVM_ALONE, .addr = addr, .size = size,
			       .owner = m->device, .object = m->object, .ctx = in_pool ? NULL : ctx };

	return uvm_begin(&u, 1u << m->device | (in_pool ? 0 : peers_of(ctx)), NULL);
}

/* Make the first size bytes of m appear at the device address addr, for ctx. */
int mem_map(struct mem *m, uint64_t addr, uint64_t size, const struct ctx *ctx, bool in_pool)
{
	int result = rm_mode() ? map_rm(m, addr, size, ctx, in_pool) : CU_OK;

	if (result)
		return result;
	if (kernel_mode())
		return kernel_map(m->kernel, addr, size, &m->tokens);
	m->tokens = (struct p2p_tokens){ 0x70327000 + (uint64_t)m->device, 1 + (uint32_t)m->device };
	return CU_OK;
}

int mem_unmap(uint64_t addr)
{
	struct uvm *u = rm_mode() ? uvm_find(addr) : NULL;

	if (kernel_mode())
		kernel_unmap(addr);
	return u ? uvm_end(u) : CU_OK;
}
